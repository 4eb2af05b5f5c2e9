"""Does a server grow while it is loaded? Decides, from what its processes used at each moment.

Of each figure the trend is a straight line (least squares) through the medians of 20 windows of
the run, its first part left out: caches fill then. What a line leaves over is not independent from
window to window, so the interval is widened by how alike neighbours are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from msgspec import Struct

from loadtest import stats, table
from loadtest.result import Counts, Series

FLAT, GROWING, UNCLEAR = "flat", "growing", "unclear"
EXITS = {FLAT: 0, GROWING: 1, UNCLEAR: 2}
LEFT_OUT = 1 / 3
"""The part of the run at its beginning that is no part of a trend."""
LEAST_WINDOWS = 10
ALLOWED = 0.01
ALLOWED_BYTES, ALLOWED_COUNT = float(1 << 20), 2.0
"""Growth per hour that still is none: a hundredth of the level, or this."""
ENDED_S = 10.0
LEAST_DONE = 0.98
_STUDENT = ((18, 2.101), (8, 2.306), (1, 12.71))  # 97.5 %, for so many degrees of freedom


class Trend(Struct, kw_only=True):
    """`level`: the median of what was looked at. `growth` in an hour, its 95 % interval from `low`
    to `high`; up to `allowed` of it is none."""

    of: str
    what: str
    unit: str
    level: float
    growth: float
    low: float
    high: float
    allowed: float
    word: str


class Soak(Struct, kw_only=True):
    """`hours`: for how many of them the run stands, by its number of requests."""

    word: str
    hours: float
    trends: list[Trend]
    reasons: list[str]


def judge(series: Sequence[Series], *, end_s: float, hour_s: float, counts: Counts) -> Soak:
    """`end_s`: how long was looked; `hour_s`: seconds of it that stand for an hour.

    Whether the client was late is of no matter here; that the requests were made and answered is.
    """
    trends, reasons = [], list(_missing(counts))
    for each in series:
        if each.what == "cpu":
            continue
        if each.at_s[-1] < end_s - ENDED_S:
            last_s = each.at_s[-1]
            reasons.append(f"{each.of}: {each.what} was not seen any more after {last_s:.0f} s")
        found = trend(each, end_s * LEFT_OUT, end_s, hour_s)
        if found is None:
            reasons.append(f"{each.of}: {each.what} was seen for too short a time")
        else:
            trends.append(found)
    reasons += [
        f"{each.of}: {each.what} grows by {said(each.growth, each.unit)} an hour"
        for each in trends
        if each.word == GROWING
    ]
    words = [each.word for each in trends]
    word = GROWING if GROWING in words else UNCLEAR if UNCLEAR in words or reasons else FLAT
    if not trends:
        word = UNCLEAR
    return Soak(word=word, hours=end_s / hour_s, trends=trends, reasons=reasons)


def _missing(counts: Counts) -> Iterator[str]:
    if counts.started < LEAST_DONE * counts.planned:
        yield f"only {counts.started} of {counts.planned} sessions began"
    ended = counts.ok + counts.slow + counts.left + counts.failed
    if ended - counts.failed < LEAST_DONE * ended:
        yield f"{counts.failed} of {ended} requests failed"


def trend(series: Series, begin_s: float, end_s: float, hour_s: float) -> Trend | None:
    """None: too little was seen for one."""
    pairs = [(at, v) for at, v in zip(series.at_s, series.values, strict=True) if at >= begin_s]
    if not pairs:
        return None
    windows = stats.into_windows([v for _, v in pairs], [at for at, _ in pairs], begin_s, end_s)
    if len(windows) < LEAST_WINDOWS:
        return None
    medians = [stats.percentile(window, 0.5) for window in windows]
    slope, error = _line(medians)
    freedom = len(medians) - 2
    student = next(value for least, value in _STUDENT if freedom >= least)
    per_hour = len(medians) * hour_s / max(end_s - begin_s, 1e-9)  # windows in an hour
    level = stats.percentile(sorted(medians), 0.5)
    least = ALLOWED_BYTES if series.unit == "bytes" else ALLOWED_COUNT
    allowed = max(ALLOWED * level, least)
    growth, around = slope * per_hour, student * error * per_hour
    low, high = growth - around, growth + around
    return Trend(
        of=series.of,
        what=series.what,
        unit=series.unit,
        level=level,
        growth=growth,
        low=low,
        high=high,
        allowed=allowed,
        word=GROWING if low > allowed else FLAT if high <= allowed else UNCLEAR,
    )


def _line(values: Sequence[float]) -> tuple[float, float]:
    """The slope per step, and its standard error."""
    count = len(values)
    middle, mean = (count - 1) / 2, sum(values) / count
    spread = sum((n - middle) ** 2 for n in range(count))
    slope = sum((n - middle) * (value - mean) for n, value in enumerate(values)) / spread
    left = [value - mean - slope * (n - middle) for n, value in enumerate(values)]
    squares = sum(each * each for each in left)
    if squares <= 0:
        return slope, 0.0
    alike = sum(a * b for a, b in itertools.pairwise(left)) / squares
    alike = min(max(alike, 0.0), 0.9)
    error = math.sqrt(squares / (count - 2) / spread)
    return slope, error * math.sqrt((1 + alike) / (1 - alike))


def said(value: float, unit: str) -> str:
    """Bytes in MiB."""
    if unit == "bytes":
        return f"{value / (1 << 20):.2f} MiB"
    return f"{value:.1f}"


def rows(soak: Soak) -> list[list[str]]:
    head = ["in an hour", "", "level", "growth", "95 % interval", "allowed", ""]
    found = [head]
    for each in soak.trends:
        numbers = (each.level, each.growth, each.low, each.high, each.allowed)
        level, growth, low, high, allowed = (said(value, each.unit) for value in numbers)
        found.append([each.of, each.what, level, growth, f"[{low}, {high}]", allowed, each.word])
    return found


def render(soak: Soak) -> str:
    lines = table.aligned(rows(soak))
    lines += [f"- {reason}" for reason in soak.reasons]
    lines.append(f"{soak.word.upper()} over what stands for {soak.hours:.2f} hours")
    return "\n".join(lines)
