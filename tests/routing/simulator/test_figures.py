"""Figures by hand."""

from __future__ import annotations

import pytest

from routing.simulator.engine import EngineModel, Job
from routing.simulator.figures import Run, Span, add_regret, measure, quantile, slo_met, span
from routing.simulator.trace import Request
from routing.simulator.world import Faults, World


def job(length: int, output: int, ttft: float | None, pace: float = 0.0, cached: int = 0) -> Job:
    made = Job(Request(0, 0.0, length, output, ()), 10.0)
    made.cached = made.predicted = cached
    if ttft is None:
        made.shed = True
    else:
        made.first_at = 10.0 + ttft
        made.ended_at = made.first_at + pace * (output - 1)
    return made


def test_figures_of_four_requests() -> None:
    world = World((), 2, EngineModel(), 64, faults=Faults(), seed=1)
    world.engines[0].busy_s, world.engines[1].busy_s = 3.0, 1.0
    jobs = [
        job(1000, 11, 1.0, 0.04, cached=500),  # good
        job(1000, 1, 2.5),  # too late
        job(2000, 11, 0.5, 0.06),  # too slow
        job(50_000, 10, None),  # refused
    ]
    figures = measure(world, jobs).figures
    assert figures["hit"] == 500 / 4000
    assert figures["ttft_mean"] == pytest.approx(4 / 3)
    assert figures["tpot_p50"] == pytest.approx(0.06)
    assert (figures["goodput"], figures["balance"]) == (0.25, 1.5)
    assert (figures["shed"], figures["shed_4k"], figures["shed_more"]) == (0.25, 0.0, 1.0)
    assert figures["failed"] == 0.0


def test_intervals_are_students() -> None:
    assert span([3.0]) == Span(3.0, 0.0)
    found = span([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.half == pytest.approx(4.30 / 3**0.5)
    assert span([float(n % 2) for n in range(40)]).half == pytest.approx(0.157, abs=0.001)


def test_quantiles_are_nearest_ranks() -> None:
    assert quantile([], 0.99) == 0.0
    assert quantile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert quantile([1.0, 2.0, 3.0], 0.999) == 3.0


def test_regret_is_against_the_same_seed() -> None:
    runs = {seed: Run({"ttft_mean": mean}, ()) for seed, mean in ((1, 1.5), (2, 2.0))}
    add_regret(runs, {1: Run({"ttft_mean": 1.0}, ()), 2: Run({"ttft_mean": 4.0}, ())})
    assert [runs[seed].figures["regret"] for seed in (1, 2)] == [0.5, -0.5]


def test_goodput_is_at_least_and_times_are_at_most() -> None:
    figures = {"ttft_p99": Span(2.0, 0.5), "goodput": Span(0.9, 0.0)}
    assert slo_met(figures, {"ttft_p99": 2.0, "goodput": 0.9})
    assert not slo_met(figures, {"ttft_p99": 1.9})
    assert not slo_met(figures, {"goodput": 0.91})
