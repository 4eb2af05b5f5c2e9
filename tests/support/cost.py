"""Counts what a gateway does in the test's own process: calls of its functions, tasks, writes."""

from __future__ import annotations

import asyncio
import sys
from asyncio.selector_events import _SelectorSocketTransport
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import proxy

ROOT = Path(proxy.__file__).parent.parent
PRODUCT = ("core", "auth", "ratelimit", "routing", "backend", "proxy")

_WRITES = (_SelectorSocketTransport.write.__code__,)


@dataclass
class Cost:
    """`calls` of Python functions of the product (a coroutine's steps count one by one), `tasks`
    that it made, `writes` to transports, of which `copied` bytes are not the object that was
    read."""

    calls: int = 0
    tasks: int = 0
    writes: int = 0
    copied: int = 0
    by_function: Counter[str] = field(default_factory=Counter)

    def dearest(self, count: int = 12) -> str:
        """The functions that are called most often, for the message of a failed test."""
        return ", ".join(f"{name} {times}" for name, times in self.by_function.most_common(count))


class Counting:
    """`with Counting() as cost`: everything that this thread does of the product meanwhile. Works
    on asyncio's own loop, whose transports are written in Python."""

    def __init__(self) -> None:
        self.cost = Cost()
        self._places: dict[CodeType, str] = {}
        self._read: dict[int, bytes] = {}
        self._factory: Any = None

    def __repr__(self) -> str:
        return f"<Counting {self.cost.calls} calls>"

    def __enter__(self) -> Cost:
        loop = asyncio.get_running_loop()
        self._factory = loop.get_task_factory()
        loop.set_task_factory(self._made)
        sys.setprofile(self._event)
        return self.cost

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        asyncio.get_running_loop().set_task_factory(self._factory)

    def _made(self, loop: Any, coroutine: Any, **how: Any) -> asyncio.Task[Any]:
        if self._place(coroutine.cr_code):
            self.cost.tasks += 1
        return asyncio.Task(coroutine, loop=loop, **how)

    def _event(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or frame.f_back is None:
            return
        code, caller = frame.f_code, frame.f_back.f_code
        if place := self._place(code):
            self.cost.calls += 1
            self.cost.by_function[place] += 1
            if caller.co_name == "_read_ready__data_received":
                data = frame.f_locals["data"]
                self._read[id(data)] = data
        elif code in _WRITES and self._place(caller):
            data = frame.f_locals["data"]
            self.cost.writes += 1
            if self._read.get(id(data)) is not data:
                self.cost.copied += len(data)

    def _place(self, code: CodeType) -> str:
        """`module.function` of the product, or nothing."""
        place = self._places.get(code)
        if place is None:
            path = Path(code.co_filename)
            inside = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in PRODUCT
            place = self._places[code] = f"{path.stem}.{code.co_name}" if inside else ""
        return place
