"""The order of those who wait, and who has to go."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.claim import Claim
from routing.admission import GUARD_EVERY, WINDOW, AdmissionQueue, Waiter
from routing.config import AdmissionConfig, WaitClass

RATE = 1000.0


def waiter(
    tokens: int = 100, tenant: str = "a", priority: int = 0, size: int = 10, cached: int = 0
) -> Waiter:
    return Waiter(
        (tokens, 10, ()), needed=tokens, cached=cached, claim=Claim(tenant, priority, size)
    )


def queue_of(*waiters: Waiter, now: float = 0.0, **config: object) -> AdmissionQueue:
    queue = AdmissionQueue(AdmissionConfig(deadline_s=1000.0, **config))  # type: ignore[arg-type]
    for one in waiters:
        assert queue.enter(one, now, RATE) == []
    return queue


def free(_: Waiter) -> tuple[float, str]:
    return 0.0, "r"


def served(queue: AdmissionQueue, number: int, now: float = 1.0) -> list[Waiter]:
    """So many in the order in which they are sent off when nothing speaks for any of them."""
    result = []
    for _ in range(number):
        found = queue.next(free, now)
        assert found is not None
        queue.serve(found[0], now)
        result.append(found[0])
    return result


def test_first_come_first_served_when_all_cost_the_same() -> None:
    waiters = [waiter(tokens) for tokens in (500, 10, 3000)]
    assert served(queue_of(*waiters), 3) == waiters


def test_what_suits_best_goes_first_but_only_among_the_first() -> None:
    waiters = [waiter() for _ in range(WINDOW + 1)]
    queue = queue_of(*waiters)
    costs = {one.number: 1.0 for one in waiters}
    costs[waiters[5].number] = 0.2
    costs[waiters[WINDOW].number] = 0.0
    found = queue.next(lambda one: (costs[one.number], "r"), 0.0)
    assert found == (waiters[5], "r")


def test_waiting_makes_up_for_cost() -> None:
    old, young = waiter(), waiter()
    queue = AdmissionQueue(AdmissionConfig(deadline_s=1000.0))
    queue.enter(old, 0.0, RATE)
    queue.enter(young, 5.0, RATE)
    costs = {old.number: 0.4, young.number: 0.0}
    assert queue.next(lambda one: (costs[one.number], "r"), 5.0) == (old, "r")
    costs[old.number] = 0.6
    assert queue.next(lambda one: (costs[one.number], "r"), 5.0) == (young, "r")


def test_whoever_waited_for_half_its_time_goes_whatever_it_costs() -> None:
    long, short = waiter(100_000), waiter(10)
    queue = AdmissionQueue(AdmissionConfig(deadline_s=10.0))
    for one in (long, short):
        assert queue.enter(one, 0.0, 1e6) == []
    costs = {long.number: 100.0, short.number: 0.0}
    assert queue.next(lambda one: (costs[one.number], "r"), 4.9) == (short, "r")
    assert queue.next(lambda one: (costs[one.number], "r"), 5.0) == (long, "r")


def test_such_turns_are_rationed() -> None:
    queue = AdmissionQueue(AdmissionConfig(deadline_s=10.0))
    old = [waiter(1000) for _ in range(3)]
    young = [waiter(1) for _ in range(2 * GUARD_EVERY)]
    for one in (*old, *young):
        assert queue.enter(one, 0.0, 1e9) == []
    costs = {one.number: 100.0 for one in old}
    turns = []
    for turn in range(GUARD_EVERY + 1):
        found = queue.next(lambda one: (costs.get(one.number, 0.0), "r"), 6.0)
        assert found is not None
        queue.serve(found[0], 6.0)
        if found[0] in old:
            turns.append(turn)
    assert turns == [0, GUARD_EVERY]


def test_one_that_cannot_go_holds_up_nobody() -> None:
    stuck, other = waiter(), waiter()
    queue = queue_of(stuck, other)
    assert queue.next(lambda one: None if one is stuck else (0.0, "r"), 900.0) == (other, "r")
    assert queue.next(lambda one: None, 900.0) is None


def test_lower_numbers_of_priority_go_first_though_they_suit_worse() -> None:
    late, early = waiter(priority=5), waiter(priority=-1)
    queue = queue_of(late, early)
    costs = {late.number: 0.0, early.number: 100.0}
    assert queue.next(lambda one: (costs[one.number], "r"), 0.0) == (early, "r")
    assert queue.next(lambda one: None if one is early else (0.0, "r"), 0.0) == (late, "r")


@pytest.mark.parametrize(("weights", "shares"), [({}, (20, 20)), ({"b": 3.0}, (10, 30))])
def test_tenants_share_by_weight_however_many_they_send(
    weights: dict[str, float], shares: tuple[int, int]
) -> None:
    flood = [waiter(tenant="a") for _ in range(300)]
    polite = [waiter(tenant="b") for _ in range(40)]
    queue = queue_of(*flood, *polite, weights=weights)
    counts = Counter(one.tenant for one in served(queue, 40))
    assert abs(counts["a"] - shares[0]) <= 1
    assert abs(counts["b"] - shares[1]) <= 1


def test_shares_are_of_tokens_not_of_requests() -> None:
    large = [waiter(1000, tenant="a") for _ in range(100)]
    small = [waiter(100, tenant="b") for _ in range(100)]
    counts = Counter(one.tenant for one in served(queue_of(*large, *small), 55))
    assert 4 <= counts["a"] <= 6


def test_whoever_comes_late_gets_its_share_from_then_on_and_no_more() -> None:
    queue = queue_of(*[waiter(tenant="a") for _ in range(200)])
    served(queue, 50)
    for _ in range(100):
        queue.enter(waiter(tenant="b"), 1.0, RATE)
    counts = Counter(one.tenant for one in served(queue, 20))
    assert abs(counts["b"] - 10) <= 1


def test_deadlines_are_of_the_class() -> None:
    config = AdmissionConfig(deadline_s=60.0, classes=(WaitClass(up_to=0, deadline_s=2.0),))
    queue = AdmissionQueue(config)
    quick, slow = waiter(priority=0), waiter(priority=1)
    for one in (slow, quick):
        assert queue.enter(one, 10.0, RATE) == []
    assert queue.overdue(11.9, RATE) == []
    ((late, refusal),) = queue.overdue(12.0, RATE)
    assert late is quick
    assert (refusal.reason, refusal.over_share) == ("saturated", False)
    assert len(queue) == 1
    assert [one for one, _ in queue.overdue(70.0, RATE)] == [slow]
    assert not queue


def test_who_has_more_than_its_share_of_the_queue_is_told_so() -> None:
    queue = queue_of(*[waiter(tenant="a") for _ in range(9)], waiter(tenant="b"))
    refusals = {one.tenant: refusal for one, refusal in queue.overdue(1000.0, RATE)[:1]}
    assert refusals["a"].reason == "tenant_over_share"
    assert refusals["a"].over_share
    assert refusals["a"].retry_after_s == 1.0  # 1,000 tokens at 1,000 a second


def test_who_would_wait_too_long_is_refused_at_once_with_the_time_to_drain() -> None:
    queue = AdmissionQueue(AdmissionConfig(deadline_s=10.0))
    for _ in range(5):
        assert queue.enter(waiter(1000), 0.0, RATE) == []
    late = waiter(1000)
    ((refused, refusal),) = queue.enter(late, 0.0, RATE, ahead_s=0.5)
    assert refused is late
    assert refusal.reason == "saturated_wait"
    assert refusal.retry_after_s == pytest.approx(5.0)
    assert len(queue) == 5
    assert queue.predicted_wait(late, RATE, 0.5) == pytest.approx(5.5)
    # Another tenant's turn comes sooner, and a higher class is ahead of all.
    assert queue.enter(waiter(100, tenant="b"), 0.0, RATE, ahead_s=0.5) == []
    assert queue.enter(waiter(1000, priority=-1), 0.0, RATE, ahead_s=4.0) == []


def test_the_pace_of_the_last_ones_counts_where_tokens_do_not() -> None:
    queue = queue_of(*[waiter(1) for _ in range(100)])
    for number in range(60):
        ((found, _),) = [queue.next(free, number)]  # type: ignore[misc]
        queue.serve(found, float(number))
    assert queue.predicted_wait(waiter(1), RATE, 0.0) == pytest.approx(40.0, rel=0.05)


@pytest.mark.parametrize(("pause", "refused"), [(30.0, True), (90.0, False)])
def test_the_pace_is_remembered_for_a_minute(pause: float, refused: bool) -> None:
    queue = AdmissionQueue(AdmissionConfig(deadline_s=10.0))
    for number in range(80):
        for _ in range(2 - len(queue)):
            queue.enter(waiter(1), float(number * 8), RATE)
        found = queue.next(free, float(number * 8))
        assert found is not None
        queue.serve(found[0], float(number * 8))
    for one in [found[0] for found in [queue.next(free, 640.0)] if found]:
        queue.leave(one)
    assert not queue
    entered = [queue.enter(waiter(1), 640.0 + pause, RATE) for _ in range(3)]
    assert bool(entered[-1]) == refused


def test_bounded_by_count_and_bytes() -> None:
    queue = queue_of(waiter(), waiter(), max_waiting=2)
    ((_, refusal),) = queue.enter(waiter(), 0.0, RATE)
    assert refusal.reason == "saturated_queue_full"
    queue = queue_of(waiter(size=60), max_waiting_bytes=100)
    assert len(queue.enter(waiter(size=41), 0.0, RATE)) == 1
    assert queue.enter(waiter(size=40), 0.0, RATE) == []
    assert queue.bytes == 100


def test_a_full_queue_makes_room_for_those_with_less() -> None:
    flood = [waiter(tenant="a") for _ in range(3)]
    queue = queue_of(*flood, max_waiting=3)
    ((gone, refusal),) = queue.enter(waiter(tenant="b"), 0.0, RATE)
    assert gone is flood[-1]
    assert refusal.reason == "tenant_over_share"
    ((gone, _),) = queue.enter(waiter(tenant="c", priority=-1), 0.0, RATE)
    assert gone is flood[1]
    newcomer = waiter(tenant="d", priority=9)
    ((gone, _),) = queue.enter(newcomer, 0.0, RATE)
    assert gone is newcomer
    assert len(queue) == 3


def test_leaving_is_idempotent_and_leaves_nothing() -> None:
    one, other = waiter(50, cached=20), waiter(tenant="b")
    queue = queue_of(one, other)
    assert queue.tokens == 130
    assert queue.age(2.0) == 4.0
    for _ in range(2):
        queue.leave(one)
        assert (len(queue), queue.tokens, queue.bytes) == (1, 100, 10)
    queue.leave(other)
    assert (len(queue), queue.tokens, queue.bytes, queue.age(5.0)) == (0, 0, 0, 0.0)
    assert queue.next(free, 0.0) is None


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 500), st.sampled_from("abc"))))
def test_sums_stay_true(steps: list[tuple[int, int, str]]) -> None:
    queue = AdmissionQueue(AdmissionConfig(deadline_s=20.0, max_waiting=8, max_waiting_bytes=900))
    inside: dict[int, Waiter] = {}
    for now, (step, number, tenant) in enumerate(steps):
        if step <= 1:
            new = waiter(number, tenant, priority=number % 2, size=number)
            gone = [one for one, _ in queue.enter(new, float(now), 1e4)]
            inside = {n: one for n, one in inside.items() if one not in gone}
            if new not in gone:
                inside[new.number] = new
        elif step == 2 and (found := queue.next(free, float(now))) is not None:
            queue.serve(found[0], float(now))
            del inside[found[0].number]
        elif step == 3 and inside:
            queue.leave(inside.pop(min(inside)))
        else:
            for one, _ in queue.overdue(float(now), 1e4):
                del inside[one.number]
        assert len(queue) == len(inside) <= 8
        assert queue.tokens == sum(one.tokens for one in inside.values())
        assert queue.bytes == sum(one.size for one in inside.values()) <= 900


def test_a_client_that_leaves_is_out_of_a_long_line_at_once() -> None:
    waiters = [waiter(5, f"t{number % 7}", size=3) for number in range(5000)]
    queue = queue_of(*waiters, max_waiting=5000)
    for one in waiters[::2]:
        queue.leave(one)
    assert (len(queue), queue.bytes, queue.tokens) == (2500, 7500, 12_500)
    assert served(queue, 3) == waiters[1:6:2]
