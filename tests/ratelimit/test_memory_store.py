from __future__ import annotations

import asyncio

from charges import REQUESTS, STREAMS, TOKENS, charge_of, plan_of, tokens
from hypothesis import given
from hypothesis import strategies as st

from core.principal import Principal
from ratelimit.bucket import UNITS
from ratelimit.config import Rule
from ratelimit.memory_store import SWEEP_AT_LEAST, MemoryStore


class Now:
    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


async def test_all_buckets_are_charged_or_none() -> None:
    store, both = MemoryStore(Now()), plan_of(REQUESTS, TOKENS)
    assert (await store.reserve(charge_of(both, 600))).granted
    refused = await store.reserve(charge_of(both, 600))
    assert not refused.granted
    assert tokens(refused.levels) == [9, 400]
    assert tokens((await store.reserve(charge_of(both, 400))).levels) == [8, 0]


async def test_an_estimate_takes_what_is_there_and_refuses_nothing() -> None:
    store, plan = MemoryStore(Now()), plan_of(TOKENS)
    assert tokens((await store.reserve(charge_of(plan, 100, 5000))).levels) == [0]
    refused = await store.reserve(charge_of(plan, 0, 5000))
    assert not refused.granted
    assert tokens(refused.levels) == [0]


async def test_concurrent_takes_admit_exactly_the_capacity() -> None:
    store, hundred = MemoryStore(Now()), plan_of(Rule(name="r", limit=100))
    decisions = await asyncio.gather(*[store.reserve(charge_of(hundred)) for _ in range(2000)])
    assert sum(decision.granted for decision in decisions) == 100


async def test_streams_hold_their_slots_until_they_end() -> None:
    now = Now()
    store, plan = MemoryStore(now), plan_of(STREAMS)
    held = [charge_of(plan) for _ in range(3)]
    for charge in held:
        assert (await store.reserve(charge)).granted
    now.at += 1e6
    assert not (await store.reserve(charge_of(plan))).granted
    store.progress(held[0], (UNITS,))
    store.settle(held[0], (UNITS,))
    assert tokens(await store.levels(plan)) == [1]
    for charge in held[1:]:
        store.settle(charge, plan.nothing)
    assert tokens(await store.levels(plan)) == [3]
    assert store._streams == {}


async def test_what_goes_beyond_the_reservation_is_charged_as_it_is_used() -> None:
    store, plan = MemoryStore(Now()), plan_of(TOKENS)
    charge = charge_of(plan, 100, 50)
    await store.reserve(charge)
    for used, level in ((120, 850), (150, 850), (170, 830), (300, 700), (200, 700)):
        store.progress(charge, (used * UNITS,))
        assert tokens(await store.levels(plan)) == [level]
    store.settle(charge, (310 * UNITS,))
    assert tokens(await store.levels(plan)) == [690]


async def test_a_shadow_refuses_nothing_and_is_not_charged_for_what_it_would_refuse() -> None:
    store = MemoryStore(Now())
    plan = plan_of(Rule(name="quiet", limit=1, shadow=True), REQUESTS)
    first, second = charge_of(plan), charge_of(plan)
    assert (await store.reserve(first)).shadowed == 0
    decision = await store.reserve(second)
    assert decision == (True, [0, 8 * UNITS], 1)
    store.progress(second, plan.amounts(10, 0, 0))
    store.settle(second, plan.amounts(10, 0, 0))
    assert tokens(await store.levels(plan)) == [0, 8]


async def test_resetting_fills_the_buckets() -> None:
    store, plan = MemoryStore(Now()), plan_of(REQUESTS, STREAMS)
    await store.reserve(charge_of(plan))
    await store.reset(plan)
    assert tokens(await store.levels(plan)) == [10, 3]


async def test_full_buckets_are_forgotten() -> None:
    now = Now()
    store = MemoryStore(now)
    for i in range(3 * SWEEP_AT_LEAST):
        now.at += 6.0
        await store.reserve(charge_of(plan_of(REQUESTS, principal=Principal(f"tenant-{i}"))))
    assert len(store._levels) <= SWEEP_AT_LEAST


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 150), st.booleans())))
async def test_what_is_charged_in_the_end_is_what_was_used(
    requests: list[tuple[int, int, bool]],
) -> None:
    store, plan = MemoryStore(Now()), plan_of(TOKENS)
    spent, held = 0, []
    for reserve, used, settles in requests:
        charge = charge_of(plan, reserve, reserve)
        if (await store.reserve(charge)).granted:
            held.append((charge, used if settles else 0))
    for charge, used in held:
        store.settle(charge, (used * UNITS,))
        spent += used
    assert tokens(await store.levels(plan)) == [1000 - spent]
