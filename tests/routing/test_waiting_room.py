"""Requests that wait at a router whose replicas have enough to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from core.claim import NOBODY, Claim
from core.errors import RateLimited, Unavailable
from core.metrics import Metrics
from core.prompt import Prompt
from core.replica import Replica
from routing.config import AdmissionConfig, Priors, RoutingConfig
from routing.lease import Lease
from routing.router import Router

HOLD = 1000
"""Tokens that a replica holds at the speed of these tests."""


def prompt(tokens: int, *blocks: int) -> Prompt:
    return Prompt("m", tokens, tokens, True, blocks, 64)


class Bench:
    def __init__(self, fleet: Any, clock: Any, **admission: Any) -> None:
        self.fleet = fleet
        self.clock = clock
        self.metrics = Metrics.private()
        self.config = RoutingConfig(
            priors=Priors(prefill_tokens_per_second=float(HOLD)),
            admission=AdmissionConfig(**{"hold_s": 1.0, **admission}),
        )
        self.router = Router(self.config, fleet, self.metrics, clock)
        self.phases: list[str] = []

    async def lease(self, asked: Prompt, claim: Claim = NOBODY, **more: Any) -> Lease:
        return await self.router.lease(
            model="m",
            prompt=asked,
            max_output_tokens=10,
            claim=claim,
            enter=lambda phase, now: self.phases.append(phase),
            **more,
        )

    async def fill(self) -> list[Lease]:
        """As much as every replica holds, and a little more."""
        leases = []
        for _ in self.fleet.replicas:
            leases.append(await asyncio.wait_for(self.lease(prompt(HOLD + 1)), 1))
        return leases

    async def waiting(self, asked: Prompt, claim: Claim = NOBODY) -> asyncio.Task[Lease]:
        task = asyncio.ensure_future(self.lease(asked, claim))
        await turns()
        assert not task.done()
        return task


async def turns() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


@pytest.fixture
def bench(fleet_of: Callable[..., Any], clock: Any) -> Callable[..., Bench]:
    def make(number: int, *, limit: int | None = None, **admission: Any) -> Bench:
        return Bench(fleet_of(number, max_in_flight=limit), clock, **admission)

    return make


async def test_nobody_waits_while_any_replica_has_room(bench: Callable[..., Bench]) -> None:
    made = bench(2)
    first = await made.lease(prompt(HOLD * 50))
    for _ in range(20):
        second = await made.lease(prompt(100))
        assert second.replica.id != first.replica.id
        second.release()
    assert made.phases == []
    first.release()


async def test_waits_while_all_have_enough_and_goes_when_a_first_token_comes(
    bench: Callable[..., Bench],
) -> None:
    made = bench(2)
    leases = await made.fill()
    task = await made.waiting(prompt(100))
    made.router.publish()
    assert made.metrics.value("headrace_queue_depth", "m") == 1
    assert made.phases == ["queue"]
    leases[1].first_token(made.clock.now)
    await turns()
    lease = task.result()
    assert lease.replica == leases[1].replica
    assert made.phases == ["queue", "route"]
    assert made.router.queues == {}
    made.router.publish()
    assert made.metrics.value("headrace_queue_depth", "m") == 0
    for one in (lease, *leases):
        one.release()


async def test_waits_for_a_place_among_those_in_flight(bench: Callable[..., Bench]) -> None:
    made = bench(2, limit=1)
    leases = [await made.lease(prompt(10)) for _ in range(2)]
    task = await made.waiting(prompt(10))
    leases[0].release()
    await turns()
    assert task.result().replica == leases[0].replica


async def test_a_release_that_nobody_told_of_is_noticed(bench: Callable[..., Bench]) -> None:
    made = bench(1)
    (lease,) = await made.fill()
    task = await made.waiting(prompt(10))
    lease.member.account.prefilled(HOLD)  # as another worker does
    assert (await asyncio.wait_for(task, 5)).replica == lease.replica


async def test_what_a_free_replica_holds_goes_there_first(bench: Callable[..., Bench]) -> None:
    made = bench(2)
    blocks = tuple(range(1, 9))
    (first, second) = await made.fill()
    known = made.router.index
    known.expect(second.member.entry, blocks)
    known.confirm(second.member.entry, blocks)
    cold = await made.waiting(prompt(600))
    warm = await made.waiting(prompt(600, *blocks))
    second.first_token(made.clock.now)
    await turns()
    assert warm.result().replica == second.replica
    assert warm.result().predicted_cached == 512
    assert cold.result().replica == second.replica  # 88 tokens are no reason to wait on
    first.release()


async def test_shed_at_the_deadline(bench: Callable[..., Bench]) -> None:
    made = bench(1, deadline_s=2.0)
    leases = await made.fill()
    task = await made.waiting(prompt(10))
    made.clock.now += 2.0
    with pytest.raises(Unavailable) as refusal:
        await asyncio.wait_for(task, 5)
    assert refusal.value.reason == "saturated"
    assert refusal.value.retry_after_s == 1.0
    assert made.metrics.value("headrace_queue_shed_total", "saturated") == 1
    assert made.router.queues == {}
    leases[0].release()


async def test_a_tenant_with_more_than_its_share_is_told_429(bench: Callable[..., Bench]) -> None:
    made = bench(1, max_waiting=2)
    leases = await made.fill()
    tasks = [await made.waiting(prompt(10), Claim("greedy")) for _ in range(2)]
    polite = await made.waiting(prompt(10), Claim("polite"))
    with pytest.raises(RateLimited) as refusal:
        await tasks[1]
    assert refusal.value.reason == "tenant_over_share"
    leases[0].release()
    await turns()
    assert tasks[0].result().replica == polite.result().replica


async def test_early_refusal_says_when_it_will_be_over(bench: Callable[..., Bench]) -> None:
    made = bench(1, deadline_s=6.0)
    leases = await made.fill()
    tasks = [await made.waiting(prompt(1000)) for _ in range(3)]
    with pytest.raises(Unavailable) as refusal:
        await made.lease(prompt(1000))
    assert refusal.value.reason == "saturated_wait"
    assert refusal.value.retry_after_s == pytest.approx(3.0)
    for task in tasks:
        task.cancel()
    await turns()
    assert made.router.queues == {}
    leases[0].release()


@pytest.mark.parametrize("granted", [False, True])
async def test_a_client_that_leaves_leaves_nothing_behind(
    bench: Callable[..., Bench], granted: bool
) -> None:
    made = bench(1)
    (lease,) = await made.fill()
    task = await made.waiting(prompt(10))
    if granted:  # in the very pass of the loop in which its turn comes
        made.router._send_waiting("m", made.router.queues["m"])
        lease.first_token(made.clock.now)
        made.router._send_waiting("m", made.router.queues["m"])
    task.cancel()
    await turns()
    assert task.cancelled()
    assert made.router.queues == {}
    lease.release()
    account = lease.member.account
    assert (account.pending_tokens, account.in_flight, account.live_tokens) == (0, 0, 0)


async def test_those_who_wait_survive_a_reload(bench: Callable[..., Bench]) -> None:
    made = bench(1)
    leases = await made.fill()
    task = await made.waiting(prompt(10))
    made.fleet.replicas = (Replica("other", "m"),)
    made.router.use(RoutingConfig(), cold=True)
    made.router.forget("r0")
    assert (await asyncio.wait_for(task, 5)).replica.id == "other"
    leases[0].release()


async def test_switched_off_nobody_waits(bench: Callable[..., Bench]) -> None:
    made = bench(1, max_waiting=0, limit=2)
    leases = [*await made.fill(), *await made.fill()]
    with pytest.raises(Unavailable) as refusal:
        await made.lease(prompt(10))
    assert refusal.value.reason == "replicas_full"
    for lease in leases:
        lease.release()


async def test_what_no_replica_could_take_is_refused_at_once(bench: Callable[..., Bench]) -> None:
    made = bench(1)
    leases = await made.fill()
    with pytest.raises(Unavailable) as refusal:
        await made.lease(prompt(10), exclude=["r0"])
    assert refusal.value.reason == "replicas_tried"
    leases[0].release()


async def test_whoever_comes_while_others_wait_gets_in_line(bench: Callable[..., Bench]) -> None:
    made = bench(1)
    (lease,) = await made.fill()
    first = await made.waiting(prompt(HOLD + 1))
    lease.member.account.prefilled(HOLD + 1)  # room, of which nobody was told yet
    second = asyncio.ensure_future(made.lease(prompt(HOLD + 1)))
    await turns()
    assert first.result().replica == lease.replica
    assert not second.done()
    second.cancel()
    await turns()


async def test_a_session_comes_back_to_where_it_was(bench: Callable[..., Bench]) -> None:
    made = bench(4)
    claim = Claim("t", session="s")
    ids = set()
    for number in range(8):
        lease = await made.lease(prompt(500, number * 2 + 1, number * 2 + 2), claim)
        ids.add(lease.replica.id)
        lease.release()
    assert len(ids) == 1
    made.fleet.replicas = [one for one in made.fleet.replicas if one.id not in ids]
    lease = await made.lease(prompt(500), claim)
    assert lease.replica.id not in ids
    lease.release()


async def test_a_failure_of_the_router_stops_no_deadline(bench: Callable[..., Bench]) -> None:
    made = bench(1, deadline_s=2.0)
    (lease,) = await made.fill()
    task = await made.waiting(prompt(10))
    candidates, made.fleet.candidates = made.fleet.candidates, None
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    lease.release()
    while len(failures) < 3:  # of which at most one is not a tick's
        await asyncio.sleep(0)
    made.clock.now += 2.0
    with pytest.raises(Unavailable):
        await asyncio.wait_for(task, 5)
    made.fleet.candidates = candidates
