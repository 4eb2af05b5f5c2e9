from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimit.bucket import UNITS
from ratelimit.config import Rule
from ratelimit.memory_store import SWEEP_AT_LEAST, MemoryStore
from ratelimit.plan import Plan, make_plan
from ratelimit.store import Charge


class Now:
    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


def plan(tenant: str = "t", **limits: int) -> Plan:
    return make_plan([Rule(name="r", **limits)], tenant, "", "m")  # type: ignore[arg-type]


async def test_all_buckets_are_charged_or_none() -> None:
    store = MemoryStore(Now())
    both = plan(requests_per_minute=10, tokens_per_minute=100)
    assert (await store.reserve(Charge(both, both.amounts(60)))).granted
    refused = await store.reserve(Charge(both, both.amounts(60)))
    assert not refused.granted
    assert refused.levels == [9 * UNITS, 40 * UNITS]
    assert (await store.reserve(Charge(both, both.amounts(40)))).levels == [8 * UNITS, 0]


async def test_concurrent_takes_admit_exactly_the_capacity() -> None:
    store = MemoryStore(Now())
    hundred = plan(requests_per_minute=100)
    decisions = await asyncio.gather(
        *[store.reserve(Charge(hundred, hundred.amounts(1))) for _ in range(2000)]
    )
    assert sum(decision.granted for decision in decisions) == 100


async def test_full_buckets_are_forgotten() -> None:
    now = Now()
    store = MemoryStore(now)
    rules = [Rule(name="r", requests_per_minute=60)]
    for i in range(10 * SWEEP_AT_LEAST):
        now.at += 1.0
        each = make_plan(rules, f"tenant-{i}", "", "m")
        await store.reserve(Charge(each, each.amounts(1)))
    assert len(store._levels) <= SWEEP_AT_LEAST


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 150), st.booleans())))
async def test_what_is_charged_in_the_end_is_what_was_used(
    requests: list[tuple[int, int, bool]],
) -> None:
    store = MemoryStore(Now())
    tokens = plan(tokens_per_minute=1000)
    spent, held = 0, []
    for reserve, used, settles in requests:
        charge = Charge(tokens, tokens.amounts(reserve))
        if (await store.reserve(charge)).granted:
            held.append((charge, used if settles else 0))
    for charge, used in held:
        store.settle(charge, tokens.used(used))
        spent += used
    probe = await store.reserve(Charge(tokens, (10**17,)))
    assert probe.levels == [(1000 - spent) * UNITS]
