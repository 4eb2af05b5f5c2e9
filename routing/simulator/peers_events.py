"""Policies of other routers that know the engines' caches from events, and the oracle. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from routing.index import PrefixIndex
from routing.simulator.engine import Engine, Job
from routing.simulator.peers import Picking
from routing.simulator.world import World

_PEAK = 15_928.0  # llm-d's `peakPrefillThroughput`


class Charging(Picking):
    """Knows what it sent and what has not come back: `pending` prompt tokens without a first
    token, `active` prompt tokens in flight."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.pending = [0] * len(world.engines)
        self.active = [0] * len(world.engines)
        self._charged: dict[int, int] = {}

    def held(self, job: Job, number: int) -> int:
        """Tokens that the replica holds, as its events tell. What a lost event would have told is
        not known; the blocks behind it count as missing, too."""
        held = self.world.engines[number].match(job.request)
        lost = self.world.faults.lost_events
        if lost and held and self.random.random() < 1 - (1 - lost) ** (held // 512 + 1):
            held = int(held * self.random.random())
        return held

    def charge(self, job: Job, number: int, tokens: int) -> None:
        """So many tokens are to be prefilled there."""
        self.pending[number] += tokens
        self.active[number] += job.request.length
        self._charged[id(job)] = tokens

    def first_token(self, job: Job, now: float) -> None:
        self.pending[job.replica] -= self._charged.pop(id(job), 0)

    def ended(self, job: Job, now: float) -> None:
        super().ended(job, now)
        self.active[job.replica] -= job.request.length

    def lost(self, job: Job, now: float) -> None:
        super().lost(job, now)
        self.active[job.replica] -= job.request.length
        self.pending[job.replica] -= self._charged.pop(id(job), 0)


class LlmdPrecise(Charging):
    """llm-d: 3 for the matched share relative to the best, 2 for the shortest queue, 2 for free
    KV room, the latter two from metrics scraped every 50 ms."""

    scrapes = True
    weights = (3.0, 2.0, 2.0)

    def pick(self, job: Job, alive: Sequence[int]) -> int:
        held = {number: self.held(job, number) for number in alive}
        best, least = max(held.values()), min(held.values())
        metrics = self.world.metrics
        queues = [metrics[number].waiting for number in alive]
        low, high = min(queues), max(queues)
        prefix, queue, room = self.weights

        def cost(number: int) -> float:
            match = (held[number] - least) / (best - least) if best > least else 0.0
            told = metrics[number]
            free = (high - told.waiting) / (high - low) if high > low else 1.0
            return -(prefix * match + queue * free + room * (1.0 - told.kv_use))

        return self.least(alive, cost)


class LlmdSticky(Charging):
    """llm-d's prefix affinity filter: keep those that hold 0.8 of the prompt, unless the in-flight
    tokens there would take 18 s longer than the best other's; of what is left, the fewest in-flight
    tokens."""

    share = 0.8
    penalty_s = 18.0

    def pick(self, job: Job, alive: Sequence[int]) -> int:
        need = self.share * job.request.length
        sticky = [number for number in alive if self.held(job, number) >= need]
        pool: Sequence[int] = alive
        if sticky:
            waits = {number: self.pending[number] / _PEAK for number in alive}
            if min(waits[n] for n in sticky) - min(waits.values()) <= self.penalty_s:
                pool = sticky
        chosen = self.least(pool, self.pending.__getitem__)
        self.charge(job, chosen, job.request.length)
        return chosen


class Dynamo(Charging):
    """Dynamo: blocks to prefill there plus blocks active there, both with this request."""

    def pick(self, job: Job, alive: Sequence[int]) -> int:
        block = self.world.block_tokens
        length = job.request.length
        held = {number: self.held(job, number) for number in alive}

        def cost(number: int) -> float:
            prefill = (self.pending[number] + length - held[number]) / block
            return prefill + (self.active[number] + length) / block

        chosen = self.least(alive, cost)
        self.charge(job, chosen, length - held[chosen])
        return chosen


class LeastPendingWork(Picking):
    """The fewest uncached prompt tokens waiting, this request's among them; what was sent counts as
    cached from then on."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._index = PrefixIndex(1 << 40)
        size = world.model.kv_tokens // world.block_tokens
        self._targets = [self._index.add(size) for _ in world.engines]
        self._pending = [0] * len(world.engines)
        self._charged: dict[int, int] = {}

    def pick(self, job: Job, alive: Sequence[int]) -> int:
        request = job.request
        mask = 0
        for number in alive:
            mask |= self._targets[number].bit
        found = self._index.match(request.blocks, mask)
        uncached = {}
        for number in alive:
            bit = self._targets[number].bit
            held = next(n for group, n in found if group & bit) * self.world.block_tokens
            uncached[number] = max(request.length - held, 1)
        chosen = self.least(alive, lambda number: self._pending[number] + uncached[number])
        self._index.expect(self._targets[chosen], request.blocks)
        self._pending[chosen] += uncached[chosen]
        self._charged[id(job)] = uncached[chosen]
        return chosen

    def first_token(self, job: Job, now: float) -> None:
        self._pending[job.replica] -= self._charged.pop(id(job))
        self._index.confirm(self._targets[job.replica], job.request.blocks)

    def lost(self, job: Job, now: float) -> None:
        super().lost(job, now)
        charged = self._charged.pop(id(job), None)
        if charged is not None:
            self._pending[job.replica] -= charged
            self._index.drop(self._targets[job.replica], job.request.blocks)


class Oracle(Picking):
    """Knows the engines' true state and everybody's true output: the least sum of the own time to
    the first token and `weight` times the delay to those decoding."""

    weight = 0.1

    def pick(self, job: Job, alive: Sequence[int]) -> int:
        now = self.world.now
        request = job.request
        model = self.world.model

        def cost(number: int) -> float:
            engine = self.world.engines[number]
            held = _to_be_held(engine, job)
            own = model.prefill_seconds(request.length - held, held) * engine.slowness
            wait = engine.remaining(now)
            step = model.per_sequence * 2 * request.output
            others = len(engine.decoding) * (own + step)
            others += request.output * model.per_token * engine.context
            use = (engine.used + request.length + request.output) / model.kv_tokens
            room = 2.0 * max(0.0, use - 0.85) / 0.15
            return wait + own + room + self.weight * others

        return self.least(alive, cost)


def _to_be_held(engine: Engine, job: Job) -> int:
    """What will be cached when its turn comes: what is there, or waits before it."""
    request = job.request
    held = engine.cache.match(request.blocks)
    for before in engine.waiting:
        count = 0
        for own, other in zip(request.blocks, before.request.blocks, strict=False):
            if own != other:
                break
            count += 1
        held = max(held, count)
    return min(held * engine.block_tokens, request.length - 1)
