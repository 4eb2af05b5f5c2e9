"""Which phases take longer now than they did before. Pure.

An allowance holds several phases, and one that grew may still be within it. So each is also
compared with itself: its mean in the time that is looked at, and its mean in all the time before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

LEAST_S = 0.01
LEAST_SHARE = 0.05
"""Both must be exceeded: means of few exchanges, or of answers of any length, always differ."""


class Sums(NamedTuple):
    """What a phase took `times` times together."""

    seconds: float
    times: float


class Growth(NamedTuple):
    """Means in seconds."""

    phase: str
    usual_s: float
    now_s: float


def grown(usual: Mapping[str, Sums], now: Mapping[str, Sums]) -> list[Growth]:
    """By how much they grew, the most first. `usual`: before the time of `now`; a phase that is new
    there took no time before, but without any exchange before nothing has grown."""
    if not any(sums.times for sums in usual.values()):
        return []
    found = []
    for phase, sums in now.items():
        growth = Growth(phase, _mean(usual.get(phase)), _mean(sums))
        more_s = growth.now_s - growth.usual_s
        if more_s > LEAST_S and more_s > LEAST_SHARE * growth.usual_s:
            found.append(growth)
    return sorted(found, key=lambda growth: growth.usual_s - growth.now_s)


def _mean(sums: Sums | None) -> float:
    return sums.seconds / sums.times if sums is not None and sums.times > 0 else 0.0
