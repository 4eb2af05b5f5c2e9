"""Explanations agree with what the router does, and change nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from core.claim import Claim
from core.errors import Unavailable
from core.metrics import Metrics
from core.prompt import Prompt
from core.replica import Replica
from routing.config import AdmissionConfig, RoutingConfig
from routing.eligibility import eligible, obstacle
from routing.explain import Explanation
from routing.router import Router


def prompt(tokens: int, *blocks: int) -> Prompt:
    return Prompt("m", tokens, tokens, True, blocks, 64)


@pytest.fixture
def router_of(fleet_of: Callable[..., Any], clock: Any) -> Callable[..., Router]:
    def make(number: int, *, max_waiting: int = 100, policy: Any = "prefix_affinity") -> Router:
        config = RoutingConfig(
            policy=policy, admission=AdmissionConfig(max_waiting=max_waiting), tie_window_s=0.0
        )
        fleet = fleet_of(number, max_in_flight=8)
        return Router(config, fleet, Metrics.private(), clock)

    return make


def explained(router: Router, asked: Prompt, claim: Claim = Claim()) -> Explanation:  # noqa: B008
    return router.explain("m", asked, 10, claim)


@pytest.mark.parametrize("policy", ["prefix_affinity", "least_load", "round_robin"])
def test_it_names_whom_the_router_then_picks(router_of: Any, policy: str) -> None:
    router = router_of(4, policy=policy)
    draw = random.Random(5)
    leases = []
    for _ in range(30):
        blocks = [draw.randrange(4) * 1000 + n for n in range(draw.randrange(30))]
        asked = prompt(len(blocks) * 64 + draw.randrange(1, 400), *blocks)
        told = explained(router, asked)
        assert told == explained(router, asked)  # nothing was charged
        lease = router.pick(model="m", prompt=asked, max_output_tokens=10)
        assert (told.choice, told.reason) == (lease.replica.id, "chosen")
        target = next(target for target in told.targets if target.replica == lease.replica.id)
        assert target.cached_tokens == lease.predicted_cached
        assert target.score == lease.score
        leases.append(lease)


def test_it_says_what_stands_in_the_way(router_of: Any) -> None:
    router = router_of(2, max_waiting=0)
    router._fleet.replicas = (
        Replica("small", "m", kv_tokens=640),
        Replica("full", "m", max_in_flight=0),
        Replica("good", "m"),
    )
    told = explained(router, prompt(1000))
    assert [target.obstacle for target in told.targets] == ["kv_too_small", "full", ""]
    assert told.choice == "good"
    router._fleet.replicas = router._fleet.replicas[:2]
    told = explained(router, prompt(1000))
    assert (told.choice, told.reason) == (None, "replicas_full")
    router._fleet.replicas = ()
    assert explained(router, prompt(1000)).reason == "no_replica"


def test_it_says_that_a_request_would_wait(router_of: Any) -> None:
    router = router_of(1)
    with router.pick(model="m", prompt=prompt(25_000), max_output_tokens=10):
        told = explained(router, prompt(10))
        assert (told.choice, told.reason, told.waiting) == (None, "waits", 0)
        assert [target.room for target in told.targets] == [False]
    assert explained(router, prompt(10)).choice == "r0"


def test_obstacles_are_the_rules_of_eligibility(fleet_of: Any, clock: Any) -> None:
    draw = random.Random(3)
    for _ in range(200):
        replicas = [
            Replica(
                f"r{n}",
                "m",
                max_in_flight=draw.choice([None, 2]),
                kv_tokens=draw.choice([None, 1000]),
            )
            for n in range(4)
        ]
        fleet = fleet_of(0)
        fleet.replicas = tuple(replicas)
        router = Router(RoutingConfig(), fleet, Metrics.private(), clock)
        members = router._current("m", 0.0).members
        for member in members:
            member.proven = draw.random() < 0.5
            for _ in range(draw.randrange(6)):
                member.account.charge(1, 1)
        exclude = draw.sample(["r0", "r1", "r2"], draw.randrange(3))
        needed = draw.choice([10, 2000])
        free = [member for member in members if not obstacle(member, needed, exclude)]
        if free:
            assert eligible(members, needed, exclude, patient=False) == free
        else:
            cold = [one for one in members if obstacle(one, needed, exclude) == "unproven"]
            try:
                assert eligible(members, needed, exclude, patient=False) == cold
            except Unavailable:
                assert not cold
