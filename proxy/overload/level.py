"""When a worker has too much to do, and how much it then sheds. Pure: figures in, a level out.

Each level includes those below it. A level begins when a figure reaches its threshold, at once; it
ends when the figure has been clearly below for a while, one level at a time.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

RELIEF = 0.9
"""A level ends below this part of the threshold that began it,"""
RELIEF_S = 2.0
"""once the figure has been there for so long."""
_NEWEST_WEIGHT = 0.1
_LONGEST_LAG_S = 1.0


class Level(enum.IntEnum):
    """What is shed. CLOSE: connections close after their answer. REFUSE: new requests are
    answered with 503. PAUSE: no connection is accepted."""

    NORMAL = 0
    CLOSE = 1
    REFUSE = 2
    PAUSE = 3


@dataclass(frozen=True, slots=True)
class Gauge:
    """A figure and the thresholds of CLOSE, REFUSE and PAUSE (infinity: never)."""

    name: str
    value: float
    thresholds: tuple[float, float, float]

    def level(self, part: float = 1.0) -> Level:
        """The highest level whose threshold, times `part`, the figure reaches."""
        return Level(sum(self.value >= threshold * part for threshold in self.thresholds))


@dataclass(frozen=True, slots=True)
class State:
    """`reason` names the figure that raised the level (empty at NORMAL); `relieved_at` is since
    when every figure allows a lower one (infinity: not now)."""

    level: Level = Level.NORMAL
    reason: str = ""
    relieved_at: float = math.inf


def decide(state: State, gauges: Sequence[Gauge], now: float) -> State:
    """The next state. `now` in seconds, rising."""
    worst = max(gauges, key=Gauge.level, default=None)
    if worst is not None and worst.level() > state.level:
        return State(worst.level(), worst.name)
    if state.level is Level.NORMAL:
        return state
    holding = [gauge for gauge in gauges if gauge.level(RELIEF) >= state.level]
    if holding:
        return State(state.level, holding[0].name)
    if math.isinf(state.relieved_at):
        return State(state.level, state.reason, now)
    if now - state.relieved_at < RELIEF_S:
        return state
    lower = Level(state.level - 1)
    return State(lower, state.reason if lower else "", now)


class Lag:
    """How late the event loop's timers are, averaged so that one long step changes little."""

    def __init__(self) -> None:
        self.average_s = 0.0

    def __repr__(self) -> str:
        return f"<Lag {self.average_s * 1e3:.1f} ms>"

    def note(self, late_s: float) -> None:
        """One timer was so late. What is longer than a second counts as one: a process that was
        stopped for a minute is well again at once."""
        late_s = min(max(late_s, 0.0), _LONGEST_LAG_S)
        self.average_s += (late_s - self.average_s) * _NEWEST_WEIGHT
