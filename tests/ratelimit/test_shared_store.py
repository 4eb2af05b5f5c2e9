from __future__ import annotations

import fcntl
import os

import pytest
from charges import REQUESTS, STREAMS, charge_of, plan_of, tokens

from ratelimit.config import Rule
from ratelimit.shared_store import SharedBuckets, SharedStore
from ratelimit.store import StoreUnavailable

LEASE_S = 30.0
TOKENS = Rule(name="tokens", unit="total_tokens", limit=1000, window="day")
PLAN = plan_of(REQUESTS, TOKENS, STREAMS)


class Now:
    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


class Host:
    def __init__(self, workers: int = 2) -> None:
        self.now = Now()
        self.buckets = SharedBuckets(workers)

    def worker(self, index: int) -> SharedStore:
        return SharedStore(self.buckets, index, LEASE_S, self.now)


async def levels(store: SharedStore) -> list[float]:
    return tokens(await store.levels(PLAN))


async def test_workers_share_what_they_count() -> None:
    host = Host()
    one, two = host.worker(0), host.worker(1)
    charge = charge_of(PLAN, 100, 50)
    assert (await one.reserve(charge)).granted
    assert await levels(two) == [9, 850, 2]
    one.progress(charge, PLAN.amounts(100, 0, 70))
    assert await levels(two) == [9, 830, 2]
    one.settle(charge, PLAN.amounts(100, 0, 60))
    assert await levels(two) == [9, 840, 3]
    await two.reset(PLAN)
    assert await levels(one) == [10, 1000, 3]
    assert one.ready() is None


async def test_a_successor_gives_back_what_its_predecessor_held() -> None:
    host = Host()
    await host.worker(0).start()
    assert (await host.worker(0).reserve(charge_of(PLAN, 100))).granted
    host.buckets.served.clear()  # as in the process that is forked next
    await host.worker(0).start()
    assert await levels(host.worker(1)) == [10, 1000, 3]


async def test_another_store_of_the_same_worker_leaves_it_what_it_holds() -> None:
    """As after a reload that changes the lease."""
    host = Host()
    first = host.worker(0)
    await first.start()
    charge = charge_of(PLAN, 100)
    assert (await first.reserve(charge)).granted
    second = host.worker(0)
    await second.start()
    await first.close()
    second.tick()
    assert (await levels(host.worker(1)))[2] == 2
    first.settle(charge, charge.plan.nothing)
    assert await levels(host.worker(1)) == [10, 1000, 3]


async def test_a_worker_that_is_silent_for_a_lease_is_taken_for_dead() -> None:
    host = Host()
    silent, other = host.worker(0), host.worker(1)
    for each in (silent, other):
        await each.start()
    assert (await silent.reserve(charge_of(PLAN, 100))).granted
    for _ in range(6):
        host.now.at += LEASE_S / 10
        other.tick()
    assert (await levels(other))[2] == 2
    for _ in range(4):
        host.now.at += LEASE_S / 10
        other.tick()
    assert host.now.at <= 1000 + LEASE_S + 1e-6
    assert await levels(other) == [10, 1000, 3]


async def test_who_beats_keeps_what_it_holds_and_who_closed_is_not_missed() -> None:
    host = Host()
    one, other = host.worker(0), host.worker(1)
    for each in (one, other):
        await each.start()
    assert (await one.reserve(charge_of(PLAN, 100))).granted
    for _ in range(20):
        host.now.at += LEASE_S / 3
        one.tick()
        other.tick()
    assert (await levels(other))[2] == 2
    await one.close()
    host.now.at += 2 * LEASE_S
    other.tick()
    assert (await levels(other))[2] == 2


async def test_another_store_of_the_same_worker_keeps_what_is_held() -> None:
    host = Host()
    old, new = host.worker(0), host.worker(0)
    await old.start()
    charge = charge_of(PLAN, 100)
    assert (await old.reserve(charge)).granted
    await new.start()
    assert await levels(new) == [9, 900, 2]
    old.settle(charge, PLAN.amounts(100, 0, 20))
    await old.close()
    assert await levels(new) == [9, 880, 3]


async def test_a_lock_that_somebody_keeps_is_waited_for_a_short_time() -> None:
    """Record locks do not exclude their own process, so another one takes them."""
    host = Host()
    store = host.worker(0)
    charge = charge_of(PLAN, 100, 50)
    assert (await store.reserve(charge)).granted
    to_child, from_parent = os.pipe()
    to_parent, from_child = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            fcntl.lockf(host.buckets.lock_file, fcntl.LOCK_EX)
            os.write(from_child, b"x")
            os.read(to_child, 1)
        finally:
            os._exit(0)
    os.read(to_parent, 1)
    try:
        with pytest.raises(StoreUnavailable, match="locked"):
            await store.reserve(charge_of(PLAN))
        store.settle(charge, PLAN.amounts(100, 0, 5))
        assert len(store._late) == 1
    finally:
        os.write(from_parent, b"x")
        os.waitpid(child, 0)  # noqa: ASYNC222 - it ends at once
        for descriptor in (to_child, from_parent, to_parent, from_child):
            os.close(descriptor)
    store.tick()
    assert not store._late
    assert await levels(store) == [9, 895, 3]
