"""Measures what a worker has to do, and sheds as `overload/level.py` decides."""

from __future__ import annotations

import contextlib
import logging
import math

from core import tasks
from core.load_board import LoadBoard
from core.metrics import Metrics
from proxy.config import LagConfig, OverloadConfig, SharesConfig
from proxy.flow import Watchdog
from proxy.listen.listener import Listener
from proxy.overload.admission import Admission
from proxy.overload.level import Gauge, Lag, Level, State, decide
from proxy.overload.resources import Resources, give_back_memory, own_resident_bytes

LOOK_S = 0.5
"""How often descriptors and memory are looked at."""
_IDLE_CLOSED = 128
"""So many idle connections are closed at each look while there is too little room."""
_LEFT = 500
"""After so many connections are over the memory that they left is given back."""
_NEVER = math.inf

_log = logging.getLogger("headrace.overload")


class Shedding:
    """One worker's."""

    def __init__(
        self,
        settings: OverloadConfig,
        *,
        listener: Listener,
        admission: Admission,
        board: LoadBoard,
        index: int,
        watchdog: Watchdog,
        metrics: Metrics,
    ) -> None:
        self.settings = settings
        self._listener = listener
        self._admission = admission
        self._load = board.for_worker(index)
        self._resources = Resources(board.resident_bytes, self._connections_and_exchanges)
        self._lag = Lag()
        self._state = State()
        self._tick_s = watchdog.tick_s
        self._ticked_at = 0.0
        self._looked_at = -_NEVER
        self._left = 0
        levels = metrics.gauge(
            "headrace_overloaded_workers", "Workers that shed at least so much", ("level",)
        )
        self._levels = {
            level: levels.labels(level.name.lower()) for level in Level if level > Level.NORMAL
        }
        self._changes = metrics.counter(
            "headrace_overload_changes_total",
            "Changes to a level of shedding, by what made it",
            ("level", "reason"),
        )
        self._lateness = metrics.gauge(
            "headrace_loop_lag_seconds", "Average lateness of the event loops, added up"
        ).labels()
        self._tasks = metrics.gauge("headrace_tasks", "Tasks under way, of all workers").labels()
        watchdog.every_tick(self.tick)

    def __repr__(self) -> str:
        return f"<Shedding {self._state}>"

    def tick(self, now: float) -> None:
        if self._ticked_at:
            self._lag.note(now - self._ticked_at - self._tick_s)
        self._ticked_at = now
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        self._lateness.set(self._lag.average_s)
        self._tasks.set(tasks.count())
        with contextlib.suppress(OSError):  # no descriptor left to read it with
            self._load.set_resident_bytes(own_resident_bytes())
        state = decide(self._state, self._gauges(), now)
        before, self._state = self._state.level, state
        if state.level is not before:
            self._change(state)
        if not self._admission.keep_alive:
            self._listener.shut_idle(_IDLE_CLOSED)
        if self._listener.left - self._left >= _LEFT:
            self._left = self._listener.left
            give_back_memory()

    def _gauges(self) -> list[Gauge]:
        settings, resources = self.settings, self._resources
        gauges = []
        if settings.descriptors != "off":
            shares = settings.descriptors
            gauges.append(Gauge("descriptors", resources.descriptors(), _of_shares(shares)))
        if settings.memory != "off":
            gauges.append(Gauge("memory", resources.memory(), _of_shares(settings.memory)))
        if settings.loop_lag_s != "off":
            lag = settings.loop_lag_s
            gauges.append(Gauge(_LAG, self._lag.average_s, _of_lag(lag)))
        return gauges

    def _change(self, state: State) -> None:
        self._admission.level = state.level
        # For want of time connections are kept: new ones would take more of it.
        self._admission.keep_alive = state.level < Level.CLOSE or state.reason == _LAG
        for level, gauge in self._levels.items():
            gauge.set(state.level >= level)
        name = state.level.name.lower()
        self._changes.labels(name, state.reason or "relief").inc()
        if state.level >= Level.PAUSE:
            self._listener.pause("overload")
        else:
            self._listener.resume("overload")
        if state.level:
            _log.warning("too much to do (%s): %s", state.reason, _MEANING[state.level])
        else:
            _log.warning("no longer too much to do")

    def _connections_and_exchanges(self) -> int:
        load = self._load.read()
        return load.connections + load.exchanges


_LAG = "loop_lag"
_MEANING = {
    Level.CLOSE: "connections close after their answer",
    Level.REFUSE: "new requests are refused",
    Level.PAUSE: "no connections are accepted",
}


def _of_shares(shares: SharesConfig) -> tuple[float, float, float]:
    return shares.close, shares.refuse, shares.pause


def _of_lag(lag: LagConfig) -> tuple[float, float, float]:
    """Never CLOSE alone: it would not help."""
    return lag.refuse, lag.refuse, lag.pause
