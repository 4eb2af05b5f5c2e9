from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.overload.level import RELIEF, RELIEF_S, Gauge, Lag, Level, State, decide

AT = (0.8, 0.9, 0.95)


def gauge(value: float, name: str = "memory") -> Gauge:
    return Gauge(name, value, AT)


@pytest.mark.parametrize(
    ("value", "level"),
    [
        (0.0, Level.NORMAL),
        (0.79, Level.NORMAL),
        (0.8, Level.CLOSE),
        (0.9, Level.REFUSE),
        (0.949, Level.REFUSE),
        (0.95, Level.PAUSE),
        (7.0, Level.PAUSE),
    ],
)
def test_a_level_begins_at_its_threshold_at_once(value: float, level: Level) -> None:
    state = decide(State(), [gauge(0.1, "descriptors"), gauge(value)], 0.0)
    assert state.level is level
    assert state.reason == ("memory" if level else "")


def test_a_figure_that_is_never_too_high() -> None:
    never = Gauge("lag", 1e9, (float("inf"),) * 3)
    assert decide(State(), [never], 0.0).level is Level.NORMAL
    assert decide(State(), [], 0.0).level is Level.NORMAL


def test_a_level_ends_step_by_step_once_it_has_been_well_for_a_while() -> None:
    state = decide(State(), [gauge(0.96)], 0.0)
    seen = []
    for tick in range(20):
        state = decide(state, [gauge(0.1)], 1.0 + tick * 0.5)
        seen.append(int(state.level))
    steps = int(RELIEF_S / 0.5)
    assert seen[: steps + 1] == [3] * steps + [2]
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == 0
    assert state.reason == ""


def test_a_little_below_the_threshold_is_not_well() -> None:
    state = decide(State(), [gauge(0.91)], 0.0)
    for tick in range(100):
        state = decide(state, [gauge(0.9 * RELIEF + 0.001)], float(tick))
    assert state.level is Level.REFUSE


def test_one_bad_look_starts_the_wait_anew() -> None:
    state = decide(State(), [gauge(0.85)], 0.0)
    for tick in range(50):
        value = 0.85 if tick % 2 else 0.1
        state = decide(state, [gauge(value)], tick * RELIEF_S * 0.9)
        assert state.level is Level.CLOSE


def test_the_reason_is_the_figure_that_holds_the_level() -> None:
    state = decide(State(), [gauge(0.9, "descriptors"), gauge(0.1)], 0.0)
    assert state.reason == "descriptors"
    state = decide(state, [gauge(0.1, "descriptors"), gauge(0.92)], 1.0)
    assert (state.level, state.reason) == (Level.REFUSE, "memory")
    state = decide(state, [gauge(0.96, "descriptors"), gauge(0.92)], 2.0)
    assert (state.level, state.reason) == (Level.PAUSE, "descriptors")


@given(st.lists(st.floats(0, 1.2), min_size=1, max_size=60))
def test_never_below_what_the_figures_ask_and_never_down_two_at_once(values: list[float]) -> None:
    state, now = State(), 0.0
    for value in values:
        before = state.level
        state = decide(state, [gauge(value)], now)
        assert state.level >= gauge(value).level()
        assert state.level >= before - 1
        assert bool(state.reason) == bool(state.level)
        now += 0.5


def test_one_long_step_of_the_loop_changes_little() -> None:
    lag = Lag()
    for _ in range(20):
        lag.note(0.001)
    lag.note(600.0)
    assert lag.average_s < 0.11
    for _ in range(20):
        lag.note(-0.001)
    assert lag.average_s < 0.02


def test_a_loop_that_is_always_late_is_seen() -> None:
    lag = Lag()
    for _ in range(30):
        lag.note(0.4)
    assert lag.average_s == pytest.approx(0.4, abs=0.03)
