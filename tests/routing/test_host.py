"""Routers of several workers that share a ledger, here all in one process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from core.errors import Unavailable
from core.metrics import Metrics
from core.prompt import Prompt
from core.shared_ledger import SharedLedger
from routing.config import RoutingConfig
from routing.host import Host
from routing.index import PrefixIndex
from routing.lease import Lease
from routing.ledger import WorkerLedger
from routing.router import Router


class Lock:
    """Says who had it."""

    def __init__(self) -> None:
        self.free = True
        self.held = False
        self.taken = 0

    def take(self) -> bool:
        assert not self.held
        self.held = self.free
        self.taken += self.free
        return self.free

    def give(self) -> None:
        assert self.held
        self.held = False


class Workers:
    def __init__(self, fleet: Any, clock: Any, count: int) -> None:
        self.memory = SharedLedger(count, len(fleet.replicas))
        self.lock = Lock()
        self.metrics = Metrics.private()
        places = {replica.id: place for place, replica in enumerate(fleet.replicas)}
        config = RoutingConfig()
        self.routers = [
            Router(
                config,
                fleet,
                self.metrics,
                clock,
                Host(WorkerLedger(self.memory, number, places), PrefixIndex(1000), self.lock),
            )
            for number in range(count)
        ]

    def pick(self, worker: int, length: int = 1000) -> Lease:
        prompt = Prompt("m", length, length, True, (), 64)
        return self.routers[worker].pick(model="m", prompt=prompt, max_output_tokens=10)


def test_picks_of_four_workers_spread_by_at_most_one(
    fleet_of: Callable[..., Any], clock: Any
) -> None:
    workers = Workers(fleet_of(7), clock, 4)
    leases = [workers.pick(number * 7 % 4) for number in range(256)]
    counts = Counter(lease.replica.id for lease in leases)
    assert len(counts) == 7
    assert max(counts.values()) - min(counts.values()) <= 1
    assert (workers.lock.taken, workers.lock.held) == (256, False)
    for lease in leases:
        lease.release()
    assert workers.metrics.value("headrace_ledger_underflow_total") == 0


def test_a_limit_holds_over_all_workers_and_ends_with_a_dead_one(
    fleet_of: Callable[..., Any], clock: Any
) -> None:
    workers = Workers(fleet_of(2, max_in_flight=3), clock, 2)
    leases = [workers.pick(number % 2) for number in range(6)]
    for worker in (0, 1):
        with pytest.raises(Unavailable) as refusal:
            workers.pick(worker)
        assert refusal.value.reason == "replicas_full"
        assert not workers.lock.held
    workers.memory.clear(0)
    assert [workers.pick(1) for _ in range(3)]
    assert len(leases) == 6


def test_gauges_show_what_each_worker_gave(fleet_of: Callable[..., Any], clock: Any) -> None:
    workers = Workers(fleet_of(1), clock, 2)
    leases = [workers.pick(0), workers.pick(1), workers.pick(1)]
    workers.routers[1].publish()
    assert workers.metrics.value("headrace_replica_inflight", "r0") == 2
    assert len(leases) == 3


def test_without_the_lock_it_goes_on_and_counts(fleet_of: Callable[..., Any], clock: Any) -> None:
    workers = Workers(fleet_of(1), clock, 2)
    workers.lock.free = False
    assert workers.pick(0).replica.id == "r0"
    assert workers.metrics.value("headrace_route_unlocked_total") == 1


async def test_one_that_waits_goes_when_another_worker_gives_something_back(
    fleet_of: Callable[..., Any], clock: Any
) -> None:
    workers = Workers(fleet_of(1, max_in_flight=1), clock, 2)
    lease = workers.pick(0)
    prompt = Prompt("m", 10, 10, True, (), 64)
    waiting = asyncio.ensure_future(
        workers.routers[1].lease(model="m", prompt=prompt, max_output_tokens=10)
    )
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()
    lease.release()
    (await asyncio.wait_for(waiting, 5)).release()
    assert not workers.lock.held
