"""Deadlines of everything that waits, swept by one coarse timer per worker.

A timer per phase and stream would cost more than the work it guards, so each object keeps the
instant by which something must have happened, and one sweep compares. Accuracy: one tick.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Protocol

NEVER = math.inf

_log = logging.getLogger("headrace.flow")


class Watched(Protocol):
    """Something with a deadline. `deadline_at` is on the event loop's clock."""

    deadline_at: float

    def on_deadline(self, now: float) -> None:
        """Called once per tick from `deadline_at` on until it is moved or discarded."""


class Watchdog:
    """Sweeps watched objects every `tick_s` seconds."""

    def __init__(self, tick_s: float = 0.1) -> None:
        self.tick_s = tick_s
        self._watched: set[Watched] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._on_tick: list[Callable[[float], None]] = []

    def __repr__(self) -> str:
        return f"<Watchdog watched={len(self._watched)}>"

    def __len__(self) -> int:
        return len(self._watched)

    def start(self) -> None:
        self._timer = self._loop.call_later(self.tick_s, self._tick)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def add(self, watched: Watched) -> None:
        self._watched.add(watched)

    def discard(self, watched: Watched) -> None:
        self._watched.discard(watched)

    def every_tick(self, call: Callable[[float], None]) -> None:
        self._on_tick.append(call)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self.tick_s, self._tick)
        now = time.monotonic()
        for watched in [w for w in self._watched if w.deadline_at <= now]:
            try:
                watched.on_deadline(now)
            except Exception:  # noqa: BLE001 - one that fails must not cost all others their deadlines
                _log.exception("the deadline of %r failed", watched)
        for call in self._on_tick:
            call(now)
