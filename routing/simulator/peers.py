"""Policies of other routers, written anew from their published rules. Pure: one class each.

What they have in common: requests in flight are those that this router sent. `tree` helpers take
what was sent for cached, without a word from the engines, as most of them do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from xxhash import xxh3_64_intdigest

from routing.index import PrefixIndex
from routing.simulator.engine import Job
from routing.simulator.world import World

_TREE_TOKENS = 16_000_000
"""SGLang's router keeps 2**26 characters."""


class Tree:
    """Who was sent which prefix, each replica's least recently used blocks forgotten."""

    def __init__(self, world: World, tokens: int = _TREE_TOKENS) -> None:
        self._index = PrefixIndex(1 << 40)
        blocks = max(tokens // world.block_tokens, 1)
        self._targets = [self._index.add(blocks) for _ in world.engines]
        self._block_tokens = world.block_tokens

    def __repr__(self) -> str:
        return f"<Tree {self._index}>"

    def match(self, job: Job, alive: Sequence[int]) -> list[int]:
        """Matched tokens of each replica in `alive`."""
        mask = 0
        for number in alive:
            mask |= self._targets[number].bit
        found = self._index.match(job.request.blocks, mask)
        result = []
        for number in alive:
            bit = self._targets[number].bit
            result.append(next(n for group, n in found if group & bit) * self._block_tokens)
        return result

    def insert(self, job: Job, number: int) -> None:
        """It is sent there."""
        target = self._targets[number]
        self._index.expect(target, job.request.blocks)
        self._index.confirm(target, job.request.blocks)


class Picking:
    """A policy that decides at once; subclasses say `pick`."""

    scrapes = False

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = world.random
        self.in_flight = [0] * len(world.engines)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.in_flight}>"

    def pick(self, job: Job, alive: Sequence[int]) -> int:
        """The replica for a request, one of `alive`."""
        raise NotImplementedError

    def arrive(self, job: Job, now: float) -> None:
        number = self.pick(job, self.world.alive)
        self.in_flight[number] += 1
        self.world.send(job, number)

    def first_token(self, job: Job, now: float) -> None:
        return

    def ended(self, job: Job, now: float) -> None:
        self.in_flight[job.replica] -= 1

    def lost(self, job: Job, now: float) -> None:
        self.in_flight[job.replica] -= 1

    def changed(self, now: float) -> None:
        return

    def least(self, alive: Sequence[int], cost: Callable[[int], float]) -> int:
        """The cheapest one; equal ones by lot."""
        costs = [cost(number) for number in alive]
        low = min(costs)
        best = [number for number, value in zip(alive, costs, strict=True) if value == low]
        return best[0] if len(best) == 1 else self.random.choice(best)

    def least_loaded(self, alive: Sequence[int]) -> int:
        return self.least(alive, self.in_flight.__getitem__)


class LeastLoad(Picking):
    """The fewest requests in flight."""

    def pick(self, job: Job, alive: Sequence[int]) -> int:
        return self.least_loaded(alive)


class RoundRobin(Picking):
    """One after another."""

    turn = 0

    def pick(self, job: Job, alive: Sequence[int]) -> int:
        self.turn += 1
        return alive[self.turn % len(alive)]


class PowerOfTwo(Picking):
    """The one with fewer requests in flight of two drawn ones."""

    def pick(self, job: Job, alive: Sequence[int]) -> int:
        return self.least_loaded(self.random.sample(alive, min(2, len(alive))))


class SglangCli(Picking):
    """SGLang's and vLLM's router with the defaults of the command line: the shortest queue if loads
    differ by more than 64 and by half; else the longest match, if it is above 0.3 of the prompt;
    else the fewest in flight."""

    threshold = 0.3
    apart = 64
    ratio = 1.5

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._tree = Tree(world)

    def pick(self, job: Job, alive: Sequence[int]) -> int:
        chosen = self._choose(job, alive)
        self._tree.insert(job, chosen)
        return chosen

    def _choose(self, job: Job, alive: Sequence[int]) -> int:
        loads = [self.in_flight[number] for number in alive]
        low, high = min(loads), max(loads)
        if high - low > self.apart and high > self.ratio * low:
            return self.least_loaded(alive)
        matches = self._tree.match(job, alive)
        longest = max(matches)
        if longest / job.request.length <= self.threshold:
            return self.least_loaded(alive)
        return alive[matches.index(longest)]


class SglangLibrary(SglangCli):
    """The same with the defaults of the library: 0.5, 32, a tenth."""

    threshold = 0.5
    apart = 32
    ratio = 1.1


class StackPrefixAware(Picking):
    """production-stack `prefixaware`: any of those with the longest match, whatever their load."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._tree = Tree(world, 1 << 40)

    def pick(self, job: Job, alive: Sequence[int]) -> int:
        matches = self._tree.match(job, alive)
        longest = max(matches)
        best = [n for n, match in zip(alive, matches, strict=True) if match == longest]
        chosen = self.random.choice(best)
        self._tree.insert(job, chosen)
        return chosen


class StackLoadAware(Picking):
    """production-stack `loadaware`: matched share minus load relative to the mean; it asks where
    blocks really are."""

    def pick(self, job: Job, alive: Sequence[int]) -> int:
        mean = sum(self.in_flight[number] for number in alive) / len(alive)
        request = job.request
        engines = self.world.engines

        def cost(number: int) -> float:
            load = (self.in_flight[number] - mean) / max(1.0, mean)
            return load - engines[number].match(request) / request.length

        return self.least(alive, cost)


class Aibrix(Picking):
    """AIBrix `prefix-cache`: the fewest running if they differ by more than 8; else the longest
    match among those with at most a standard deviation above the mean; else the fewest."""

    apart = 8

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._tree = Tree(world)

    def pick(self, job: Job, alive: Sequence[int]) -> int:
        chosen = self._choose(job, alive)
        self._tree.insert(job, chosen)
        return chosen

    def _choose(self, job: Job, alive: Sequence[int]) -> int:
        loads = [self.in_flight[number] for number in alive]
        if max(loads) - min(loads) > self.apart:
            return self.least_loaded(alive)
        mean = sum(loads) / len(loads)
        limit = mean + math.sqrt(sum((load - mean) ** 2 for load in loads) / len(loads))
        matches = self._tree.match(job, alive)
        fitting = [
            (-match, load, number)
            for match, load, number in zip(matches, loads, alive, strict=True)
            if match and load <= limit
        ]
        return min(fitting)[2] if fitting else self.least_loaded(alive)


class Chwbl(Picking):
    """Consistent hashing with bounded loads on the first block: the next on the ring with at most
    1.25 times the mean load."""

    factor = 1.25
    places = 100

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._ring = sorted(
            (xxh3_64_intdigest(f"{number}/{place}".encode()), number)
            for number in range(len(world.engines))
            for place in range(self.places)
        )

    def pick(self, job: Job, alive: Sequence[int]) -> int:
        blocks = job.request.blocks
        text = str(blocks[0] if blocks else -1 - job.request.number)
        point = xxh3_64_intdigest(text.encode())
        start = sum(at < point for at, _ in self._ring)
        limit = math.ceil(self.factor * (sum(self.in_flight) + 1) / len(alive))
        for step in range(len(self._ring)):
            number = self._ring[(start + step) % len(self._ring)][1]
            if number in alive and self.in_flight[number] + 1 <= limit:
                return number
        return self.least_loaded(alive)
