from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from auth.refresh import BURST, MAX_ABSENT, AbsentKeys, History, RefreshPolicy

POLICY = RefreshPolicy(refresh_s=300, cool_down_s=10, stale_for_s=86400)


def test_three_at_once_then_one_per_cool_down() -> None:
    history, begun = History(), []
    for tenth in range(1000):
        now = 100 + tenth / 10
        if now >= POLICY.allowed_at(history):
            history = POLICY.begun(history, now)
            begun.append(now)
    assert begun[:BURST] == [100, 100.1, 100.2]
    assert [round(at, 1) for at in begun[BURST:]] == [110, 120, 130, 140, 150, 160, 170, 180, 190]


@given(
    st.lists(st.floats(0, 25), min_size=1, max_size=60),
    st.lists(st.booleans(), min_size=60, max_size=60),
)
def test_never_more_than_the_allowance(gaps: list[float], fates: list[bool]) -> None:
    history, now, begun = History(), 50.0, []
    for gap, succeeds in zip(gaps, fates, strict=False):
        now += gap
        if now < POLICY.allowed_at(history):
            assert POLICY.allowed_at(history) - now <= POLICY.cool_down_s
            continue
        history = POLICY.begun(history, now)
        begun.append(now)
        if succeeds:
            history = POLICY.succeeded(history)
    for index, first in enumerate(begun):
        for later, last in enumerate(begun[index:], 1):
            assert later <= BURST + (last - first) / POLICY.cool_down_s + 1e-9


def test_due_at_once_then_after_the_refresh_time() -> None:
    assert POLICY.due_at(History(), 0.5) == 0.0
    history = POLICY.succeeded(POLICY.begun(History(), 100))
    assert POLICY.due_at(history, 1.0) == 400
    assert POLICY.due_at(history, 0.0) == 340


def test_failures_back_off_within_the_allowance() -> None:
    history, now, waits = History(), 100.0, []
    for _ in range(12):
        history = POLICY.begun(history, now)
        due = POLICY.due_at(history, 1.0)
        waits.append(round(due - now, 1))
        now = due
    assert waits == [1, 2, 7, 10, 16, 32, 60, 60, 60, 60, 60, 60]


def test_an_attempt_that_nobody_finished_counts_as_failed() -> None:
    good = POLICY.succeeded(POLICY.begun(History(), 100))
    assert POLICY.due_at(POLICY.begun(good, 400), 1.0) == 401


def test_success_ends_the_back_off() -> None:
    history = History()
    for now in (100, 101, 103):
        history = POLICY.begun(history, now)
    assert history.failures == 3
    history = POLICY.succeeded(history)
    assert (history.failures, history.success_at) == (0, 103)


def test_a_stale_set_is_used_for_as_long_as_it_may() -> None:
    history = POLICY.succeeded(POLICY.begun(History(), 100))
    for now in range(400, 80000, 1000):
        history = POLICY.begun(history, now)
    assert POLICY.is_usable(history, 100 + 86400)
    assert not POLICY.is_usable(history, 100 + 86401)
    assert not POLICY.is_usable(History(), 0)


def test_absent_keys_are_forgotten_after_the_cool_down() -> None:
    absent = AbsentKeys(10)
    absent.remember("a", "ES256", 100)
    assert absent.holds("a", "ES256", 109.9)
    assert absent.until("a", "ES256") == 110
    assert absent.until("a", "RS256") == 0
    assert not absent.holds("a", "RS256", 105)
    assert not absent.holds("b", "ES256", 105)
    assert not absent.holds("a", "ES256", 110)


def test_absent_keys_are_bounded() -> None:
    absent = AbsentKeys(10)
    for number in range(MAX_ABSENT + 5):
        absent.remember(str(number), "ES256", 100)
    held = [number for number in range(MAX_ABSENT + 5) if absent.holds(str(number), "ES256", 101)]
    assert held == list(range(5, MAX_ABSENT + 5))
