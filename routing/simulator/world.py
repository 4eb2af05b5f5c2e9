"""The clock of a simulation: arrivals, the engines' steps, faults, and what a policy decides. Pure.

A policy is told what a gateway would see: a request arrives, a first token comes, an answer ends or
breaks off. It answers by `send` and `shed`, at once or later. Engines' own state is only for
policies that say what they take from it: scraped metrics and cache events.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from routing.simulator.engine import Engine, EngineModel, Job
from routing.simulator.trace import Request

SCRAPE_S = 0.05
"""llm-d's default; others scrape every 5 to 30 s."""


class Metrics(NamedTuple):
    """What a scrape tells of a replica."""

    waiting: int = 0
    running: int = 0
    kv_use: float = 0.0


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong; instants are shares of the trace's span. `crash`: the first replica is lost
    then and comes back cold after `away_s`. `slow`: the first replica takes so many times as long.
    `lost_events`: so much of what caches tell is never heard. `frozen`: metrics stand still from
    then on. `gateways` work side by side and hear of each other's load after `gossip_s` (None:
    never), and from replicas of what all prompts left there if they tell (`kv_events`).
    `constants`: every rate that our policy starts from is so many times too high."""

    crash: float | None = None
    away_s: float = 60.0
    slow: float = 1.0
    lost_events: float = 0.0
    frozen: float | None = None
    gateways: int = 1
    gossip_s: float | None = None
    kv_events: bool = False
    constants: float = 1.0


class Policy(Protocol):
    """`scrapes`: it reads metrics."""

    @property
    def scrapes(self) -> bool: ...

    def arrive(self, job: Job, now: float) -> None: ...

    def first_token(self, job: Job, now: float) -> None: ...

    def ended(self, job: Job, now: float) -> None: ...

    def lost(self, job: Job, now: float) -> None: ...

    def changed(self, now: float) -> None: ...


class World:
    """`alive`: the replicas that take requests, a new list whenever they change."""

    def __init__(
        self,
        requests: Sequence[Request],
        replicas: int,
        model: EngineModel,
        block_tokens: int,
        *,
        faults: Faults,
        seed: int,
    ) -> None:
        self.now = 0.0
        self.model = model
        self.block_tokens = block_tokens
        self.faults = faults
        self.random = random.Random(seed)
        self.engines = [Engine(model, block_tokens) for _ in range(replicas)]
        self.engines[0].slowness = faults.slow
        self.alive: list[int] = list(range(replicas))
        self.metrics = [Metrics()] * replicas
        self.jobs: list[Job] = []
        self._requests = requests
        self._followers = _followers(requests)
        self._count = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._unfinished = len(requests)
        self._policy: Policy | None = None
        self._span = max((request.at for request in requests if request.after is None), default=0)
        self._frozen_at = float("inf") if faults.frozen is None else faults.frozen * self._span

    def __repr__(self) -> str:
        return f"<World at {self.now:.3f} s, {self._unfinished} unfinished>"

    def run(self, policy: Policy) -> list[Job]:
        """Play the whole trace; every request with its outcome."""
        self._policy = policy
        for request in self._requests:
            if request.after is None:
                self._arrival(request, request.at)
        if policy.scrapes:
            self.later(SCRAPE_S, self._scrape)
        if self.faults.crash is not None:
            self.later(self.faults.crash * self._span, self._crash)
        due, pop = self._due, heapq.heappop
        while self._unfinished and due:
            self.now, _, happen = pop(due)
            happen()
        return self.jobs

    def drain(self) -> None:
        """Let everything happen that is still due, after `run`; nothing is scraped any more."""
        self._frozen_at = float("-inf")
        while self._due:
            self.now, _, happen = heapq.heappop(self._due)
            happen()

    def later(self, seconds: float, happen: Callable[[], None]) -> None:
        """Have `happen` called so much later."""
        heapq.heappush(self._due, (self.now + seconds, next(self._count), happen))

    def send(self, job: Job, replica: int) -> None:
        """Begin a try."""
        job.replica = replica
        job.sent_at = self.now
        job.tries += 1
        engine = self.engines[replica]
        before = engine.version
        engine.submit(job, self.now)
        if engine.version != before:
            self._tick_later(replica)

    def shed(self, job: Job) -> None:
        """Refuse a request."""
        job.shed = True
        self._over(job)

    @property
    def policy(self) -> Policy:
        """The one that decides."""
        assert self._policy is not None
        return self._policy

    def _arrival(self, request: Request, at: float) -> None:
        def arrive() -> None:
            job = Job(request, self.now)
            self.jobs.append(job)
            self.policy.arrive(job, self.now)

        heapq.heappush(self._due, (at, next(self._count), arrive))

    def _tick_later(self, replica: int) -> None:
        engine = self.engines[replica]
        if engine.end_at is None:
            return
        version = engine.version

        def tick() -> None:
            if engine.version == version:
                self._tick(replica)

        heapq.heappush(self._due, (engine.end_at, next(self._count), tick))

    def _tick(self, replica: int) -> None:
        first, ended = self.engines[replica].finish_steps(self.now)
        policy, now = self.policy, self.now
        for job in first:
            policy.first_token(job, now)
        for job in ended:
            policy.ended(job, now)
            self._over(job)
        self._tick_later(replica)

    def _over(self, job: Job) -> None:
        self._unfinished -= 1
        for follower in self._followers.get(job.request.number, ()):
            self._arrival(follower, self.now + follower.at)

    def _scrape(self) -> None:
        if self.now < self._frozen_at:
            for number, engine in enumerate(self.engines):
                use = engine.used / self.model.kv_tokens
                self.metrics[number] = Metrics(engine.queued, engine.running, use)
            self.later(SCRAPE_S, self._scrape)

    def _crash(self) -> None:
        """The first replica goes. Prompts are sent again elsewhere; answers that had begun are
        broken off, which counts as failed."""
        lost = self.engines[0].crash()
        self.alive = [number for number in self.alive if number != 0]
        policy, now = self.policy, self.now
        policy.changed(now)
        for job in lost:
            policy.lost(job, now)
        for job in lost:
            if job.first_at is None:
                job.started, job.done, job.cached = False, 0, 0
                policy.arrive(job, now)
            else:
                self._over(job)
        self.later(self.faults.away_s, self._return)

    def _return(self) -> None:
        self.alive = [0, *self.alive]
        self.policy.changed(self.now)


def _followers(requests: Sequence[Request]) -> dict[int, list[Request]]:
    known = {request.number for request in requests}
    result: dict[int, list[Request]] = {}
    for request in requests:
        if request.after is not None and request.after in known:
            result.setdefault(request.after, []).append(request)
    return result
