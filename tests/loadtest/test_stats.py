"""Percentiles are exact, and their intervals hold what they should as often as they say."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.stats import (
    WINDOWS,
    interval,
    into_windows,
    log_bins,
    needed,
    percentile,
    replicates,
)

VALUES = st.lists(st.floats(0, 1e6), min_size=2, max_size=200)


@given(VALUES, st.integers(1, 99))
def test_percentiles_are_those_of_type_7(values: list[float], percent: int) -> None:
    expected = statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
    assert percentile(sorted(values), percent / 100) == pytest.approx(expected, abs=1e-6)


def test_the_ends_are_the_least_and_the_greatest() -> None:
    assert [percentile([1, 2, 4], quantile) for quantile in (0, 0.5, 1)] == [1, 2, 4]
    assert percentile([3], 0.99) == 3


def test_far_tails_need_many_samples() -> None:
    assert [needed(quantile) for quantile in (0.5, 0.95, 0.99, 0.999)] == [1, 1, 500, 5000]


@given(st.lists(st.floats(0, 10, exclude_max=True), max_size=100))
def test_windows_keep_every_value(instants: list[float]) -> None:
    windows = into_windows(instants, instants, 0.0, 10.0)
    assert len(windows) <= WINDOWS
    assert [value for window in windows for value in window] == sorted(instants)
    assert all(window[-1] - window[0] <= 10 / WINDOWS + 1e-9 for window in windows)


def test_replicates_are_the_same_for_a_seed() -> None:
    windows = [[1.0, 2.0], [3.0], [4.0, 9.0]]
    assert replicates(windows, [0.5], 1) == replicates(windows, [0.5], 1)
    assert replicates(windows, [0.5], 1) != replicates(windows, [0.5], 2)
    assert replicates([], [0.5], 1) == [[]]


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """The median of exponential samples, 60 runs: 95 % of them, less some for 20 windows."""
    rng, covered, true = random.Random(4), 0, 0.6931
    for run in range(60):
        values = [rng.expovariate(1) for _ in range(60)]
        windows = into_windows(values, [n / 6 for n in range(60)], 0.0, 10.0)
        (drawn,) = replicates(windows, [0.5], run)
        low, high = interval(drawn, 0.95)
        covered += low <= true <= high
    assert 51 <= covered <= 59


def test_requests_that_fare_alike_widen_the_interval() -> None:
    """One slow window of twenty is one event, not a hundred."""
    slow = [[1.0] * 100] * 17 + [[5.0] * 100] * 3
    mixed = [[1.0] * 85 + [5.0] * 15] * 20
    of_slow = interval(replicates(slow, [0.9], 1)[0], 0.95)
    of_mixed = interval(replicates(mixed, [0.9], 1)[0], 0.95)
    assert of_mixed == (5.0, 5.0)
    assert of_slow == (1.0, 5.0)


@given(st.lists(st.floats(1e-6, 1e9), max_size=100))
def test_every_value_is_in_a_bin(values: list[float]) -> None:
    assert sum(log_bins(values, 0.01, 10, 61)) == len(values)


def test_bins_are_even_on_a_logarithmic_scale() -> None:
    assert log_bins([0.001, 0.01, 0.05, 0.2, 2, 2000], 0.01, 1, 4) == [3, 1, 1, 1]
