"""The product's router on simulated time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from routing.config import AdmissionConfig, RoutingConfig
from routing.simulator.engine import EngineModel, Job
from routing.simulator.gateway import OwnPolicy
from routing.simulator.trace import Request, sample
from routing.simulator.world import Faults, World

TRACE = sample(sessions=20)


def played(
    config: RoutingConfig, requests: list[Request], replicas: int, **faults: float
) -> tuple[OwnPolicy, World, list[Job]]:
    made = Faults(**faults)  # type: ignore[arg-type]
    world = World(requests, replicas, EngineModel(), 64, faults=made, seed=1)
    policy = OwnPolicy(world, config)
    return policy, world, world.run(policy)


def accounts(policy: OwnPolicy) -> list[tuple[int, int, int]]:
    """Of every gateway, after the last of its leases."""
    return [
        (account.pending_tokens, account.in_flight, account.live_tokens)
        for router in policy.routers
        for fleet in router._models.values()
        for account in (member.account for member in fleet.members)
    ]


def test_what_is_predicted_is_delivered() -> None:
    policy, _, jobs = played(RoutingConfig(), TRACE.arrivals(1.0, 1), 3)
    assert sum(job.cached for job in jobs) > 10_000
    assert all(abs(job.predicted - job.cached) <= 64 for job in jobs)
    assert set(accounts(policy)) == {(0, 0, 0)}


@pytest.mark.parametrize("gossip_s", [0.0, 0.05, 5.0])
def test_gossip_leaves_every_ledger_at_nothing(gossip_s: float) -> None:
    requests = TRACE.arrivals(8.0, 1)
    policy, world, jobs = played(RoutingConfig(), requests, 3, gateways=3, gossip_s=gossip_s)
    world.drain()
    assert {job.gateway for job in jobs} == {0, 1, 2}
    assert len(accounts(policy)) == 9
    assert set(accounts(policy)) == {(0, 0, 0)}


def test_a_crash_under_gossip_leaves_nothing_either() -> None:
    faults = {"gateways": 2, "gossip_s": 0.01, "crash": 0.5, "away_s": 1.0}
    policy, world, jobs = played(RoutingConfig(), TRACE.arrivals(8.0, 1), 3, **faults)
    world.drain()
    assert len(jobs) == len(TRACE.requests)
    assert any(job.tries > 1 or job.ended_at is None for job in jobs)
    assert set(accounts(policy)) == {(0, 0, 0)}


def test_gateways_that_share_spread_a_burst_better() -> None:
    burst = [Request(n, n / 1000, 4000, 50, (n,)) for n in range(8)]
    spread = []
    for gossip_s in (None, 0.0001):
        faults = {"gateways": 4} if gossip_s is None else {"gateways": 4, "gossip_s": gossip_s}
        _, _, jobs = played(RoutingConfig(tie_window_s=0.0), burst, 8, **faults)
        counts = [sum(job.replica == replica for job in jobs) for replica in range(8)]
        spread.append(max(counts))
    assert spread[1] == 1 < spread[0]


def test_gateways_find_what_others_left_if_replicas_tell() -> None:
    asked = [Request(n, float(n), 4000, 5, tuple(range(7))) for n in range(4)]
    for told, hits in ((True, 3), (False, 0)):
        faults: dict[str, Any] = {"gateways": 4, "kv_events": told}
        _, _, jobs = played(RoutingConfig(tie_window_s=0.0), asked, 8, **faults)
        assert sum(job.predicted > 0 for job in jobs) == hits
        assert len({job.replica for job in jobs}) == 1 or not told


def test_who_waits_too_long_is_refused_and_the_rest_is_answered() -> None:
    flood = [Request(n, n / 1000, 16_000, 20, (n,)) for n in range(60)]
    config = msgspec.structs.replace(
        RoutingConfig(), admission=AdmissionConfig(hold_s=1.0, deadline_s=4.0)
    )
    policy, _, jobs = played(config, flood, 2)
    shed = [job for job in jobs if job.shed]
    assert 0 < len(shed) < 60
    for job in jobs:
        assert job.shed == (job.ended_at is None)
        if job.first_at is not None:
            assert job.first_at - job.offered_at < 4.0 + 4.5
    assert set(accounts(policy)) == {(0, 0, 0)}

    patient = msgspec.structs.replace(RoutingConfig(), admission=AdmissionConfig(max_waiting=0))
    assert not any(job.shed for job in played(patient, flood, 2)[2])
