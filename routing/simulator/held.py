"""Another router's policy behind a queue, as some of them have one before saturated replicas. Pure.

While every replica has more than `hold_s` seconds of prefill to do, requests wait, first come
first served, and are refused after `DEADLINE_S`: what our own policy does by default. When there is
room the policy chooses among those that have it. The queue knows the replicas' true backlog.
"""

from __future__ import annotations

from collections import deque

from routing.config import AdmissionConfig
from routing.simulator.engine import Job
from routing.simulator.peers import Picking
from routing.simulator.world import World

DEADLINE_S = AdmissionConfig().deadline_s
_LOOK_S = 0.05


class Held:
    """`inner` decides, this one when."""

    def __init__(self, world: World, inner: Picking, hold_s: float) -> None:
        self._world = world
        self._inner = inner
        self._hold_s = hold_s
        self._waiting: deque[Job] = deque()
        self._looking = False
        self.scrapes = inner.scrapes

    def __repr__(self) -> str:
        return f"<Held {self._inner} {len(self._waiting)} waiting>"

    def arrive(self, job: Job, now: float) -> None:
        self._waiting.append(job)
        self._review()

    def first_token(self, job: Job, now: float) -> None:
        self._inner.first_token(job, now)
        self._review()

    def ended(self, job: Job, now: float) -> None:
        self._inner.ended(job, now)

    def lost(self, job: Job, now: float) -> None:
        self._inner.lost(job, now)

    def changed(self, now: float) -> None:
        self._inner.changed(now)

    def _review(self) -> None:
        world, waiting = self._world, self._waiting
        while waiting:
            if world.now - waiting[0].offered_at > DEADLINE_S:
                world.shed(waiting.popleft())
                continue
            room = [n for n in world.alive if world.engines[n].remaining(world.now) <= self._hold_s]
            if not room:
                break
            job = waiting.popleft()
            chosen = self._inner.pick(job, room)
            self._inner.in_flight[chosen] += 1
            world.send(job, chosen)
        if waiting and not self._looking:
            self._looking = True
            world.later(_LOOK_S, self._look)

    def _look(self) -> None:
        self._looking = False
        self._review()
