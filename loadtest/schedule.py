"""When each session begins and what it asks, all drawn before the run. Decides.

The same scenario and seed give the same schedule. What a session asks depends on the seed and its
number alone, so a closed loop, which does not know how many there will be, draws the same ones.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from loadtest.scenario import (
    Arrivals,
    Burst,
    Choice,
    Closed,
    Constant,
    Gamma,
    LogNormal,
    Poisson,
    Ramp,
    Requests,
    Scenario,
    Size,
    Uniform,
)


@dataclass(frozen=True, slots=True)
class Turn:
    """`leave_after`: pieces of content after which the client leaves; None: it stays.

    `think_s` passes between the answer before and this turn.
    """

    prompt_words: int
    output_tokens: int
    think_s: float
    leave_after: int | None


@dataclass(frozen=True, slots=True)
class Session:
    """`due_s` counts from the start of the run, warm-up included. `pause_s` > 0: a slow reader.
    `blocks` of `block_words` each: what the prompt is made of, where it shares its beginning with
    others."""

    number: int
    due_s: float
    kind: Requests
    model: str
    group: int
    place: int
    pause_s: float
    turns: tuple[Turn, ...]
    blocks: tuple[int, ...] = ()
    block_words: int = 0


def draw(size: Size, rng: random.Random) -> float:
    if isinstance(size, Uniform):
        return rng.uniform(size.low, size.high)
    if isinstance(size, LogNormal):
        drawn = size.median * rng.lognormvariate(0, size.sigma)
        return min(max(drawn, size.low), size.high)
    if isinstance(size, Choice):
        return rng.choices(size.values, size.weights)[0]
    return float(size)


def due_times(arrivals: Arrivals, total_s: float, rng: random.Random) -> list[float]:
    """Rising, in [0, total_s). A closed loop has none: its users begin at once."""
    if isinstance(arrivals, Closed):
        return []
    return sorted(_due(arrivals, total_s, rng))


def _due(arrivals: Arrivals, total_s: float, rng: random.Random) -> Iterator[float]:
    if isinstance(arrivals, Constant):
        count = 0
        while (at := count / arrivals.rate) < total_s:
            yield at
            count += 1
    elif isinstance(arrivals, Poisson):
        yield from _poisson(arrivals.rate, total_s, rng)
    elif isinstance(arrivals, Gamma):
        shape = arrivals.burstiness
        at = rng.gammavariate(shape, 1 / (shape * arrivals.rate))
        while at < total_s:
            yield at
            at += rng.gammavariate(shape, 1 / (shape * arrivals.rate))
    elif isinstance(arrivals, Burst):
        count = 0
        while (at := count * arrivals.every_s) < total_s:
            yield from [at] * arrivals.size
            count += 1
        if arrivals.rate:
            yield from _poisson(arrivals.rate, total_s, rng)
    elif isinstance(arrivals, Ramp):
        # thinning: of the highest rate, each is kept with the chance that its instant has
        highest = max(arrivals.rate, arrivals.to)
        for at in _poisson(highest, total_s, rng):
            rate = arrivals.rate + (arrivals.to - arrivals.rate) * at / total_s
            if rng.random() * highest < rate:
                yield at


def _poisson(rate: float, total_s: float, rng: random.Random) -> Iterator[float]:
    at = rng.expovariate(rate)
    while at < total_s:
        yield at
        at += rng.expovariate(rate)


def draw_session(scenario: Scenario, seed: int, number: int, due_s: float) -> Session:
    """What session `number` asks."""
    rng = random.Random(f"{seed}/{number}")
    kinds = scenario.requests
    kind = rng.choices(kinds, [each.weight for each in kinds])[0]
    models = scenario.models
    model = rng.choices(models, [each.weight for each in models])[0].name
    group = rng.randrange(kind.prefix.groups) if kind.prefix else 0
    place = rng.randrange(1 << 30)
    slow = kind.slow_readers
    pause_s = slow.pause_s if slow is not None and rng.random() < slow.share else 0.0
    count = max(1, round(draw(kind.turns, rng)))
    turns = tuple(_turn(kind, first=index == 0, rng=rng) for index in range(count))
    return Session(number, due_s, kind, model, group, place, pause_s, turns)


def _turn(kind: Requests, first: bool, rng: random.Random) -> Turn:
    leaves = kind.disconnects
    leave_after = None
    if leaves is not None and rng.random() < leaves.share:
        leave_after = round(draw(leaves.after_tokens, rng))
    return Turn(
        prompt_words=max(1, round(draw(kind.prompt, rng))),
        output_tokens=max(1, round(draw(kind.output, rng))),
        think_s=0.0 if first else draw(kind.think_s, rng),
        leave_after=leave_after,
    )


def plan(scenario: Scenario, seed: int) -> list[Session]:
    """All sessions of an open loop, the earliest first; none of a closed one."""
    rng = random.Random(seed)
    times = due_times(scenario.arrivals, scenario.total_s, rng)
    return [draw_session(scenario, seed, number, at) for number, at in enumerate(times)]
