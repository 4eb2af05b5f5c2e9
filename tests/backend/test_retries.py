from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from backend.retries import WINDOW_S, RetryBudget


def taken(budget: RetryBudget, now: float, tries: int = 1000) -> int:
    return sum(budget.take(now) for _ in range(tries))


def test_floor_alone() -> None:
    budget = RetryBudget(0.1, 10)
    assert taken(budget, 100.0) == 10
    assert taken(budget, 109.9) == 0
    assert taken(budget, 110.0) == 10


def test_a_share_of_the_exchanges_comes_on_top() -> None:
    budget = RetryBudget(0.1, 10)
    for _ in range(500):
        budget.started(5.0)
    assert taken(budget, 6.0) == 60
    assert taken(budget, 15.0) == 0, "the retries of second 6 still count, the exchanges do not"
    assert taken(budget, 16.0) == 10


def test_none_allowed() -> None:
    assert taken(RetryBudget(0.0, 0), 1.0) == 0


def test_a_long_pause_forgets_everything() -> None:
    budget = RetryBudget(0.1, 3)
    assert taken(budget, 3.0) == 3
    assert taken(budget, 3.0 + 1000 * WINDOW_S) == 3


@given(st.lists(st.tuples(st.floats(0, 3), st.booleans()), max_size=120))
def test_never_more_than_the_bound_in_a_window(steps: list[tuple[float, bool]]) -> None:
    budget, now = RetryBudget(0.1, 2), 0.0
    exchanges: list[int] = []
    retries: list[int] = []
    for wait, is_retry in steps:
        now += wait
        inside = int(now) - WINDOW_S
        if not is_retry:
            budget.started(now)
            exchanges.append(int(now))
            continue
        before = sum(at > inside for at in retries)
        bound = 2 + 0.1 * sum(at > inside for at in exchanges)
        allowed = budget.take(now)
        assert allowed == (before + 1 <= bound)
        if allowed:
            retries.append(int(now))
