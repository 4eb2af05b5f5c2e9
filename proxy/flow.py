"""Deadlines of everything that waits, swept by one coarse timer per worker.

A timer per phase and stream would cost more than the work it guards, so each object keeps the
instant by which something must have happened, and one sweep compares. With more than LOOKS
objects a sweep goes on over several ticks, as a look at one that has been idle for long costs a
cache miss. Accuracy: one tick for each LOOKS objects.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Protocol

NEVER = math.inf
LOOKS = 1000

_log = logging.getLogger("headrace.flow")


class Watched(Protocol):
    """Something with a deadline. `deadline_at` is on the event loop's clock, and may be moved both
    ways at any time."""

    deadline_at: float

    def on_deadline(self, now: float) -> None:
        """Called in each sweep from `deadline_at` on until it is moved or discarded."""


class RelayTimeouts(Protocol):
    """Seconds. `first_token_s`: until the first event of a stream, or `first_token_factor` times
    what was predicted if that is longer; `response_s`: until an
    answer that is not streamed is complete; `idle_s`: between two reads of a stream;
    `heartbeat_s`: how long the replica's comments alone are held back; `total_s`: a whole
    exchange (None: no bound)."""

    @property
    def first_token_s(self) -> float: ...

    @property
    def first_token_factor(self) -> float: ...

    @property
    def response_s(self) -> float: ...

    @property
    def idle_s(self) -> float: ...

    @property
    def heartbeat_s(self) -> float: ...

    @property
    def total_s(self) -> float | None: ...


class Watchdog:
    """Sweeps watched objects every `tick_s` seconds."""

    def __init__(self, tick_s: float = 0.1) -> None:
        self.tick_s = tick_s
        self._watched: list[Watched] = []
        self._places: dict[Watched, int] = {}
        self._next = 0  # the place at which the sweep goes on
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
        if watched not in self._places:
            self._places[watched] = len(self._watched)
            self._watched.append(watched)

    def discard(self, watched: Watched) -> None:
        place = self._places.pop(watched, None)
        if place is not None:
            last = self._watched.pop()
            if last is not watched:
                self._watched[place] = last
                self._places[last] = place

    def every_tick(self, call: Callable[[float], None]) -> None:
        self._on_tick.append(call)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self.tick_s, self._tick)
        now = time.monotonic()
        start = self._next if self._next < len(self._watched) else 0
        self._next = start + LOOKS
        for watched in [w for w in self._watched[start : self._next] if w.deadline_at <= now]:
            if watched not in self._places:
                continue  # discarded since by another one
            try:
                watched.on_deadline(now)
            except Exception:  # noqa: BLE001 - one that fails must not cost all others their deadlines
                _log.exception("the deadline of %r failed", watched)
        for call in self._on_tick:
            call(now)
