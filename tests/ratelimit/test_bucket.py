from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit.bucket import (
    MAX_DEBT,
    MAX_FILL_US,
    MAX_TOKENS,
    UNITS,
    Level,
    Limit,
    change,
    fill_us,
    full_at_us,
    refill,
    units,
)

MINUTE_US = 60_000_000
windows = st.sampled_from([1, 60, 3600, 86_400])
limits = st.builds(
    lambda rate, share, window_s: Limit(max(1, int(rate * share)) * UNITS, rate, window_s),
    st.integers(1, MAX_TOKENS),
    st.floats(0.01, 1.0),
    windows,
)


def test_an_unknown_bucket_is_full() -> None:
    assert refill(Limit(5 * UNITS, 60, 60), None, 7) == (5 * UNITS, 7)


def test_a_bucket_refills_at_its_rate() -> None:
    limit = Limit(60 * UNITS, 60, 60)
    assert refill(limit, (0, 0), 1_000_000) == (UNITS, 1_000_000)
    assert refill(limit, (0, 0), MINUTE_US - 1)[0] == 60 * UNITS - 1
    assert refill(limit, (0, 0), 10 * MINUTE_US)[0] == 60 * UNITS


def test_burst_and_refill_are_apart() -> None:
    limit = Limit(100 * UNITS, 24, 86_400)
    assert refill(limit, (0, 0), 3600 * 1_000_000)[0] == UNITS
    assert fill_us(100 * UNITS, limit) == 100 * 3600 * 1_000_000


def test_a_debt_is_worked_off_first() -> None:
    limit = Limit(60 * UNITS, 60, 60)
    level = change(limit, (10 * UNITS, 0), -40 * UNITS)
    assert level == (-30 * UNITS, 0)
    assert refill(limit, level, MINUTE_US // 2)[0] == 0


def test_giving_back_stops_at_capacity_and_debt_at_its_bound() -> None:
    limit = Limit(UNITS, 1, 60)
    assert change(limit, (0, 0), 5 * UNITS)[0] == UNITS
    assert change(limit, (0, 0), -10 * MAX_DEBT)[0] == -MAX_DEBT


def test_a_step_back_of_the_clock_neither_refills_nor_blocks_for_more_than_one_burst() -> None:
    limit = Limit(60 * UNITS, 60, 60)
    level: Level = (0, 3600 * 1_000_000)
    level = refill(limit, level, 0)
    assert level == (0, MINUTE_US)
    assert refill(limit, level, MINUTE_US) == (0, MINUTE_US)
    assert refill(limit, level, 2 * MINUTE_US)[0] == 60 * UNITS


def test_a_smaller_capacity_holds_at_once() -> None:
    assert refill(Limit(5 * UNITS, 1, 60), (9 * UNITS, 0), 0)[0] == 5 * UNITS
    assert refill(Limit(5 * UNITS, 1, 60), (9 * UNITS, 0), 1)[0] == 5 * UNITS


@pytest.mark.parametrize(
    ("tokens", "expected"), [(-3, 0), (0, 0), (2, 2 * UNITS), (10**30, MAX_TOKENS * UNITS)]
)
def test_counts_are_bounded(tokens: int, expected: int) -> None:
    assert units(tokens) == expected


@given(st.integers(1, MAX_TOKENS * UNITS), st.integers(1, MAX_TOKENS), windows)
def test_fill_time_is_the_first_instant_at_which_enough_flowed_in(
    missing: int, rate: int, window_s: int
) -> None:
    time_us = fill_us(missing, Limit(UNITS, rate, window_s))
    if time_us < MAX_FILL_US:
        assert time_us * rate // window_s >= missing
        assert (time_us - 1) * rate / window_s < missing


@given(limits, st.lists(st.tuples(st.integers(-MINUTE_US, MINUTE_US), st.floats(0, 1))), st.data())
def test_never_more_than_capacity_and_rate_is_granted(
    limit: Limit, steps: list[tuple[int, float]], data: st.DataObject
) -> None:
    now = last = 10**15
    forward = 0
    stored: Level | None = None
    granted = 0
    for step, share in steps:
        now += step
        # Time that was lived through twice, after a step back, counts once.
        forward, last = forward + max(0, now - last), max(last, now)
        amount = int(limit.capacity * share)
        level = refill(limit, stored, now)
        if level[0] >= amount:
            stored = change(limit, level, -amount)
            granted += amount
    # Beyond one burst a clock that stepped back is no longer believed to be late.
    if all(step >= 0 for step, _ in steps):
        assert granted <= limit.capacity + forward * limit.refill / limit.window_s


@given(limits, st.integers(-(10**15), 10**15), st.integers(0, 10**12), st.integers(0, 10**12))
def test_forgetting_a_full_bucket_changes_nothing(
    limit: Limit, level: int, now: int, later: int
) -> None:
    stored = (min(level, limit.capacity), 0)
    if full_at_us(limit, stored) <= now:
        assert refill(limit, stored, now + later)[0] == limit.capacity
