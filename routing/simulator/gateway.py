"""Our own policy: the router of the product itself, with its waiting room, on simulated time. Pure.

Several gateways hear of each other's charges through gossip: what one did is repeated on the
others' ledgers so much later. What is on its way to a replica no other gateway knows; what it holds
all know if it tells. All ledgers are the product's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from core.errors import RateLimited, Unavailable
from core.metrics import Metrics as Meters
from core.prompt import Prompt
from core.replica import Load, Replica
from routing.config import RoutingConfig
from routing.lease import Lease
from routing.member import Member
from routing.router import Router
from routing.simulator.engine import Job
from routing.simulator.loop import SimulatedLoop, Ticket
from routing.simulator.world import World
from routing.waiting_room import WaitingRoom

_MODEL = "model"
_EVENT_S = 0.01


class SimulatedFleet:
    """The replicas that take requests, as the router is told of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        size = world.model.kv_tokens
        self._all = [
            Replica(str(number), _MODEL, kv_tokens=size) for number in range(len(world.engines))
        ]
        self.refresh()

    def __repr__(self) -> str:
        return f"<SimulatedFleet {len(self._here)} replicas>"

    def refresh(self) -> None:
        """Look anew at who is alive."""
        self._here: Sequence[Replica] = tuple(self._all[number] for number in self._world.alive)

    def candidates(self, model: str) -> Sequence[Replica]:
        return self._here

    def load(self, replica_id: str) -> Load | None:
        metrics = self._world.metrics[int(replica_id)]
        return Load(metrics.running, metrics.waiting, metrics.kv_use, self._world.now)


@dataclass(slots=True)
class _Told:
    """What the other gateways were told of a lease, and have charged."""

    members: list[Member]
    pending: int
    live: int


class OwnPolicy:
    """`gateways` routers that get requests in turn. Without gossip each knows only its own load,
    without KV events only its own prompts."""

    def __init__(self, world: World, config: RoutingConfig) -> None:
        faults = world.faults
        self._world = world
        self._fleet = SimulatedFleet(world)
        self._gossip_s = faults.gossip_s if faults.gateways > 1 else None
        self._events = faults.kv_events and faults.gateways > 1
        self._turn = 0
        self.scrapes = True
        loop = SimulatedLoop(world)
        self.routers = [
            Router(
                config,
                self._fleet,
                Meters.private(),
                lambda: world.now,
                rooms=functools.partial(WaitingRoom, loop_of=lambda: loop),
            )
            for _ in range(faults.gateways)
        ]
        self._block_tokens = world.block_tokens
        self._told: dict[int, _Told] = {}
        self._views: list[dict[str, Member]] = []
        if self._gossip_s is not None or self._events:
            self._views = [self._members(router) for router in self.routers]

    def __repr__(self) -> str:
        return f"<OwnPolicy {self.routers}>"

    def arrive(self, job: Job, now: float) -> None:
        request = job.request
        length = request.length
        job.gateway = self._turn % len(self.routers)
        self._turn += 1
        prompt = Prompt(_MODEL, length, length, True, request.blocks, self._block_tokens)
        router = self.routers[job.gateway]
        asking = router.lease(model=_MODEL, prompt=prompt, max_output_tokens=None)
        self._go_on(job, asking)

    def _go_on(self, job: Job, asking: Coroutine[Any, None, Lease]) -> None:
        """Let the router decide; a request that has to wait goes on when its ticket is settled."""
        try:
            ticket: Ticket = asking.send(None)
        except StopIteration as end:
            self._sent(job, end.value)
        except (RateLimited, Unavailable):
            self._world.shed(job)
        else:
            ticket.then = lambda: self._go_on(job, asking)

    def _sent(self, job: Job, lease: Lease) -> None:
        job.lease = lease
        job.predicted = lease.predicted_cached
        if self._gossip_s is not None:
            self._tell(job, lease)
        self._world.send(job, int(lease.replica.id))

    def first_token(self, job: Job, now: float) -> None:
        lease = job.lease
        assert isinstance(lease, Lease)
        lease.first_token(now)
        if self._gossip_s is not None:
            self._world.later(self._gossip_s, self._tell_first(job))
        if self._events:
            self._world.later(_EVENT_S, self._tell_stored(job))

    def ended(self, job: Job, now: float) -> None:
        lease = job.lease
        assert isinstance(lease, Lease)
        request = job.request
        lease.settle(
            prompt_tokens=request.length, cached_tokens=job.cached, output_tokens=request.output
        )
        if self._gossip_s is not None:
            self._world.later(self._gossip_s, self._tell_end(job))

    def lost(self, job: Job, now: float) -> None:
        lease = job.lease
        assert isinstance(lease, Lease)
        lease.release()
        if self._gossip_s is not None:
            self._tell_end(job)()

    def changed(self, now: float) -> None:
        self._fleet.refresh()

    def _members(self, router: Router) -> dict[str, Member]:
        """A router's entries by replica; it makes them with its first decision."""
        prompt = Prompt(_MODEL, 1, 1, True, (), self._block_tokens)
        with router.pick(model=_MODEL, prompt=prompt, max_output_tokens=1) as lease:
            return {member.replica.id: member for member in lease.fleet.members}

    def _tell(self, job: Job, lease: Lease) -> None:
        told = _Told([], lease.pending, job.request.length + round(lease.fleet.output_tokens))
        self._told[id(job)] = told

        def hear() -> None:
            if self._told.get(id(job)) is told:
                told.members = [view[lease.replica.id] for _, view in self._others(job)]
                for member in told.members:
                    member.account.charge(told.pending, told.live)

        self._world.later(self._gossip_s or 0.0, hear)

    def _tell_first(self, job: Job) -> Callable[[], None]:
        def hear() -> None:
            told = self._told.get(id(job))
            if told is not None:
                for member in told.members:
                    member.account.prefilled(told.pending)
                told.pending = 0

        return hear

    def _tell_end(self, job: Job) -> Callable[[], None]:
        def hear() -> None:
            told = self._told.pop(id(job), None)
            if told is not None:
                for member in told.members:
                    member.account.free(told.pending, told.live)

        return hear

    def _tell_stored(self, job: Job) -> Callable[[], None]:
        """Others are told by the replica, which still has it."""

        def hear() -> None:
            blocks = job.request.blocks
            for router, view in self._others(job):
                entry = view[str(job.replica)].entry
                router.index.expect(entry, blocks)
                router.index.confirm(entry, blocks)

        return hear

    def _others(self, job: Job) -> list[tuple[Router, dict[str, Member]]]:
        pairs = zip(self.routers, self._views, strict=True)
        return [pair for number, pair in enumerate(pairs) if number != job.gateway]
