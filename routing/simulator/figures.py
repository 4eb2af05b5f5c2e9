"""Figures of simulations: of one run, and of several with their 95 % confidence intervals. Pure.

TTFT is from the instant a request was offered, waiting and earlier tries included. TPOT is (end -
first token) / (output - 1). Goodput is the share of all offered requests, refused ones included,
with a TTFT of at most 2 s and a TPOT of at most 50 ms. Hit is the share of prompt tokens that
replicas found cached. Balance is the busiest replica's time at work over the mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from routing.simulator.engine import Job
from routing.simulator.world import World

TTFT_S = 2.0
TPOT_S = 0.05
CLASSES: tuple[tuple[str, int], ...] = (("4k", 4096), ("32k", 32_768), ("more", 1 << 62))
"""Size classes by prompt tokens: up to 4k, up to 32k, more."""
QUANTILES = (*(n / 100 for n in range(1, 100)), 0.995, 0.999)

# Student's t, two-sided 95 %, for 1 to 15 degrees of freedom.
_T = (
    *(12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23),
    *(2.20, 2.18, 2.16, 2.14, 2.13),
)

Figures = dict[str, float]
"""By name; `NAMES` in the order of the table. Shares are 0 to 1, times in seconds."""


class Run(NamedTuple):
    """One simulation; `ttft` at `QUANTILES`."""

    figures: Figures
    ttft: tuple[float, ...]


class Span(NamedTuple):
    """A mean over seeds, and the half width of its confidence interval."""

    mean: float
    half: float


def measure(world: World, jobs: Sequence[Job]) -> Run:
    """The figures of one run."""
    done = [job for job in jobs if job.ended_at is not None and job.first_at is not None]
    ttft = sorted((job.first_at or 0.0) - job.offered_at for job in done)
    tpot = sorted(_pace(job) for job in done if job.request.output > 1)
    offered = len(jobs)
    asked = sum(job.request.length for job in done)
    busy = [engine.busy_s for engine in world.engines]
    shed = [job for job in jobs if job.shed]
    figures = {
        "hit": _ratio(sum(job.cached for job in done), asked),
        "ttft_mean": _ratio(sum(ttft), len(ttft)),
        "ttft_p50": quantile(ttft, 0.5),
        "ttft_p99": quantile(ttft, 0.99),
        "tpot_p50": quantile(tpot, 0.5),
        "tpot_p99": quantile(tpot, 0.99),
        "goodput": _ratio(sum(_good(job) for job in done), offered),
        "balance": _ratio(max(busy), sum(busy) / len(busy)),
        "failed": _ratio(offered - len(done) - len(shed), offered),
        "shed": _ratio(len(shed), offered),
        "off": _ratio(sum(abs(job.predicted - job.cached) for job in done), asked),
    }
    low = 0
    for name, most in CLASSES:
        of_class = [job for job in jobs if low < job.request.length <= most]
        figures[f"shed_{name}"] = _ratio(sum(job.shed for job in of_class), len(of_class))
        low = most
    return Run(figures, tuple(quantile(ttft, share) for share in QUANTILES))


def add_regret(runs: Mapping[int, Run], oracle: Mapping[int, Run]) -> None:
    """Add what each run's mean TTFT is above the oracle's of the same seed, as a share."""
    for seed, run in runs.items():
        best = oracle[seed].figures["ttft_mean"]
        run.figures["regret"] = _ratio(run.figures["ttft_mean"] - best, best)


def spans(runs: Sequence[Run]) -> dict[str, Span]:
    """Means over seeds."""
    names = runs[0].figures
    return {name: span([run.figures[name] for run in runs]) for name in names}


def span(values: Sequence[float]) -> Span:
    """The mean and, of two or more values, its interval."""
    count = len(values)
    mean = sum(values) / count
    if count < 2:
        return Span(mean, 0.0)
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    factor = _T[count - 2] if count - 2 < len(_T) else 1.96
    return Span(mean, factor * spread / math.sqrt(count))


def quantile(ordered: Sequence[float], share: float) -> float:
    """The nearest rank; 0 of nothing."""
    if not ordered:
        return 0.0
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


SLO_NAMES = (*("ttft_mean", "ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99"), "goodput", "shed")


def slo_met(figures: Mapping[str, Span], slo: Mapping[str, float]) -> bool:
    """Whether the means keep what `slo` asks: times and shed at most, goodput at least."""
    return all(_keeps(name)(figures[name].mean, limit) for name, limit in slo.items())


def _keeps(name: str) -> Callable[[float, float], bool]:
    return float.__ge__ if name == "goodput" else float.__le__


def _pace(job: Job) -> float:
    return ((job.ended_at or 0.0) - (job.first_at or 0.0)) / (job.request.output - 1)


def _good(job: Job) -> bool:
    if (job.first_at or 0.0) - job.offered_at > TTFT_S:
        return False
    return job.request.output <= 1 or _pace(job) <= TPOT_S


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
