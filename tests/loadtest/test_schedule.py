"""The schedule is drawn before the run, and a seed draws the same one again."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.scenario import (
    Arrivals,
    Burst,
    Choice,
    Closed,
    Constant,
    Disconnects,
    Gamma,
    LogNormal,
    Poisson,
    Prefix,
    Ramp,
    Requests,
    Scenario,
    SlowReaders,
    Uniform,
)
from loadtest.schedule import draw, draw_session, due_times, plan

KINDS: list[Arrivals] = [
    Constant(rate=20),
    Poisson(rate=20),
    Gamma(rate=20, burstiness=0.5),
    Burst(size=10, every_s=1, rate=10),
    Ramp(rate=1, to=39),
]


def scenario(**changes: object) -> Scenario:
    kind = Requests(name="a", prompt=Uniform(low=1, high=9), output=LogNormal(median=9, sigma=1))
    values = {"name": "t", "arrivals": Poisson(rate=20), "requests": [kind], "duration_s": 5}
    return Scenario(**{**values, **changes})  # type: ignore[arg-type]


def test_constant_is_exact() -> None:
    assert due_times(Constant(rate=4), 1.0, random.Random(0)) == [0, 0.25, 0.5, 0.75]


def test_bursts_come_together_and_on_time() -> None:
    times = due_times(Burst(size=3, every_s=2), 5.0, random.Random(0))
    assert times == [0, 0, 0, 2, 2, 2, 4, 4, 4]


def test_a_closed_loop_has_no_due_times() -> None:
    assert plan(scenario(arrivals=Closed(users=3)), 1) == []


@given(st.sampled_from(KINDS), st.integers(0, 1 << 30), st.floats(0.1, 5))
def test_due_times_rise_and_lie_within_the_run(kind: Arrivals, seed: int, total_s: float) -> None:
    times = due_times(kind, total_s, random.Random(seed))
    assert times == sorted(times)
    assert all(0 <= at < total_s for at in times)
    assert times == due_times(kind, total_s, random.Random(seed))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
def test_the_rate_is_what_was_asked_for(kind: Arrivals) -> None:
    """20 a second on average: 20,000 in 1,000 s, and no deviation beyond 5 sigma of the widest."""
    times = due_times(kind, 1000.0, random.Random(5))
    assert len(times) == pytest.approx(20_000, abs=1000)


def test_a_ramp_rises() -> None:
    times = due_times(Ramp(rate=1, to=39), 1000.0, random.Random(5))
    first = sum(at < 500 for at in times)
    assert first / len(times) == pytest.approx(0.2625, abs=0.02)  # the area under the line


def test_burstiness_is_the_spread_of_the_gaps() -> None:
    """The variation of gamma gaps is 1 / sqrt(burstiness)."""
    times = due_times(Gamma(rate=20, burstiness=0.25), 2000.0, random.Random(5))
    gaps = [after - before for before, after in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert variance**0.5 / mean == pytest.approx(2.0, rel=0.1)


@given(st.integers(0, 1 << 30))
def test_sizes_keep_their_bounds(seed: int) -> None:
    rng = random.Random(seed)
    assert 2 <= draw(Uniform(low=2, high=3), rng) <= 3
    assert 5 <= draw(LogNormal(median=10, sigma=3, low=5, high=20), rng) <= 20
    assert draw(Choice(values=[1, 7], weights=[0, 1]), rng) == 7
    assert draw(4, rng) == 4


@given(st.integers(0, 1 << 30), st.integers(0, 1000))
def test_a_session_depends_on_seed_and_number_alone(seed: int, number: int) -> None:
    drawn = draw_session(scenario(), seed, number, 1.0)
    assert drawn == draw_session(scenario(arrivals=Closed(users=1)), seed, number, 1.0)
    assert drawn.turns[0].prompt_words in range(1, 10)
    assert drawn.turns[0].output_tokens >= 1


def test_a_plan_has_its_sessions_in_order() -> None:
    sessions = plan(scenario(), 7)
    assert [session.number for session in sessions] == list(range(len(sessions)))
    assert sessions == plan(scenario(), 7)
    assert sessions != plan(scenario(), 8)


def test_shares_and_groups() -> None:
    kind = Requests(
        name="a",
        prompt=1,
        output=1,
        turns=2,
        think_s=3,
        prefix=Prefix(words=5, groups=4),
        disconnects=Disconnects(share=0.25, after_tokens=6),
        slow_readers=SlowReaders(share=0.5, pause_s=0.2),
    )
    drawn = [draw_session(scenario(requests=[kind]), 3, number, 0.0) for number in range(2000)]
    assert {session.group for session in drawn} == {0, 1, 2, 3}
    assert {session.pause_s for session in drawn} == {0.0, 0.2}
    assert {turn.leave_after for session in drawn for turn in session.turns} == {None, 6}
    assert {tuple(turn.think_s for turn in session.turns) for session in drawn} == {(0.0, 3.0)}
    leaving = sum(turn.leave_after == 6 for session in drawn for turn in session.turns)
    assert leaving / 4000 == pytest.approx(0.25, abs=0.04)
    assert sum(session.pause_s > 0 for session in drawn) / 2000 == pytest.approx(0.5, abs=0.06)
