"""Exact percentiles and their bootstrap intervals. Decides.

A percentile is interpolated linearly between the closest ranks (Hyndman and Fan's type 7, the
default of numpy and R). Requests near in time are not independent, so what is drawn anew is not
the single request but the window of time that it was due in, with all the requests in it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

WINDOWS = 20
_WORK = 2_000_000  # samples that are gone through at most, over all replicates
_REPLICATES = (100, 1000)

# Fewer samples than these say nothing about so far a tail.
_NEEDED = ((0.999, 5000), (0.99, 500))


def percentile(ordered: Sequence[float], quantile: float) -> float:
    """Of samples in rising order, of which there is one at least."""
    rank = (len(ordered) - 1) * quantile
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


def needed(quantile: float) -> int:
    """Samples without which the percentile is refused."""
    return next((count for above, count in _NEEDED if quantile >= above), 1)


def into_windows(
    values: Sequence[float], instants: Sequence[float], begin: float, end: float
) -> list[list[float]]:
    """The values of each of the `WINDOWS` equal parts of [begin, end); empty ones left out."""
    windows: list[list[float]] = [[] for _ in range(WINDOWS)]
    width = (end - begin) / WINDOWS
    for value, at in zip(values, instants, strict=True):
        index = int((at - begin) / width) if width > 0 else 0
        windows[min(max(index, 0), WINDOWS - 1)].append(value)
    return [sorted(window) for window in windows if window]


def replicates(
    windows: Sequence[Sequence[float]], quantiles: Sequence[float], seed: int
) -> list[list[float]]:
    """For each quantile, in rising order, what it is in each of the resampled runs."""
    size = sum(len(window) for window in windows)
    if not size:
        return [[] for _ in quantiles]
    rng = random.Random(seed)
    count = min(max(_WORK // size, _REPLICATES[0]), _REPLICATES[1])
    drawn: list[list[float]] = [[] for _ in quantiles]
    for _ in range(count):
        run: list[float] = []
        for window in rng.choices(windows, k=len(windows)):
            run.extend(window)
        run.sort()
        for values, quantile in zip(drawn, quantiles, strict=True):
            values.append(percentile(run, quantile))
    return [sorted(values) for values in drawn]


def interval(drawn: Sequence[float], confidence: float) -> tuple[float, float]:
    """The middle part of resampled values in rising order."""
    tail = (1 - confidence) / 2
    return percentile(drawn, tail), percentile(drawn, 1 - tail)


def log_bins(values: Sequence[float], low: float, per_decade: int, count: int) -> list[int]:
    """How many lie in each bin; bin i > 0 begins at low * 10 ** (i / per_decade)."""
    bins = [0] * count
    for value in values:
        index = math.floor(math.log10(value / low) * per_decade) if value > low else 0
        bins[min(max(index, 0), count - 1)] += 1
    return bins
