"""What is to be simulated, one run of it, and the search for the number of replicas. Pure: who runs
many at once is the command."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from routing.simulator.engine import EngineModel
from routing.simulator.figures import Run, Span, add_regret, measure, slo_met, spans
from routing.simulator.policies import ORACLE, make
from routing.simulator.trace import Trace
from routing.simulator.world import Faults, World

MOST_REPLICAS = 1024


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything but trace, policy and seed."""

    replicas: int = 8
    speed: float = 1.0
    model: EngineModel = field(default_factory=EngineModel)
    faults: Faults = field(default_factory=Faults)


Runner = Callable[[Setup, Sequence[str], Sequence[int]], Mapping[tuple[str, int], Run]]
"""Runs each policy with each seed."""


def simulate(trace: Trace, setup: Setup, policy: str, seed: int) -> Run:
    """One simulation."""
    world = World(
        trace.arrivals(setup.speed, seed),
        setup.replicas,
        setup.model,
        trace.block_tokens,
        faults=setup.faults,
        seed=seed,
    )
    return measure(world, world.run(make(policy, world)))


@dataclass(frozen=True, slots=True)
class Row:
    """A policy's figures over all seeds; `ttft`: mean quantiles."""

    policy: str
    figures: Mapping[str, Span]
    ttft: tuple[float, ...]


def study(run: Runner, setup: Setup, policies: Sequence[str], seeds: Sequence[int]) -> list[Row]:
    """The policies side by side; regret is there if the oracle is."""
    found = run(setup, policies, seeds)
    by_policy = {name: {seed: found[name, seed] for seed in seeds} for name in policies}
    if ORACLE in by_policy:
        for runs in by_policy.values():
            add_regret(runs, by_policy[ORACLE])
    rows = []
    for name, runs in by_policy.items():
        every = list(runs.values())
        curves = zip(*(one.ttft for one in every), strict=True)
        rows.append(Row(name, spans(every), tuple(sum(at) / len(every) for at in curves)))
    return rows


def find_replicas(
    run: Runner, setup: Setup, policy: str, seeds: Sequence[int], slo: Mapping[str, float]
) -> tuple[int, Row] | None:
    """The fewest replicas that keep `slo`, taking it that more never serve worse; None if even
    `MOST_REPLICAS` do not."""
    tried: dict[int, Row] = {}

    def keeps(count: int) -> bool:
        rows = study(run, replace(setup, replicas=count), [policy], seeds)
        tried[count] = rows[0]
        return slo_met(rows[0].figures, slo)

    high = 1
    while not keeps(high):
        high *= 2
        if high > MOST_REPLICAS:
            return None
    low = high // 2  # which does not keep it, or is none
    while high - low > 1:
        middle = (low + high) // 2
        if keeps(middle):
            high = middle
        else:
            low = middle
    return high, tried[high]
