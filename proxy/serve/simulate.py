"""The command `simulate`: routing policies against each other on a trace, and how many replicas a
load needs. Runs spread over all CPUs."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec

from core.errors import ConfigError
from proxy.serve.supervise.supervisor import say
from routing.simulator.engine import EngineModel
from routing.simulator.figures import SLO_NAMES, Run
from routing.simulator.page import page
from routing.simulator.policies import NAMES, OWN, check
from routing.simulator.study import (
    MOST_REPLICAS,
    Row,
    Runner,
    Setup,
    find_replicas,
    study,
)
from routing.simulator.study import simulate as simulate_once
from routing.simulator.table import document, table
from routing.simulator.trace import Trace, load
from routing.simulator.world import Faults

EXIT_NOT_KEPT = 1


def simulate(arguments: argparse.Namespace) -> int:
    """Exit status 1: no number of replicas keeps the SLO. Raises ConfigError."""
    trace = _trace(arguments.trace, arguments.requests)
    setup = _setup(arguments)
    policies = _policies(arguments)
    seeds = range(1, arguments.seeds + 1)
    with ProcessPoolExecutor(arguments.jobs or os.cpu_count()) as pool:
        job = functools.partial(_one, arguments.trace, arguments.requests)
        run = functools.partial(_run_all, pool, job)
        if arguments.find_replicas:
            return _plan(run, setup, policies, seeds, arguments)
        rows = study(run, setup, policies, seeds)
    _write(rows, _facts(trace, setup, arguments), arguments)
    return 0


@functools.lru_cache(maxsize=1)
def _trace(path: str, count: int | None) -> Trace:
    """Kept, so that each process reads it once."""
    return load(path).first(count)


def _one(path: str, count: int | None, setup: Setup, policy: str, seed: int) -> Run:
    return simulate_once(_trace(path, count), setup, policy, seed)


def _run_all(
    pool: ProcessPoolExecutor,
    job: Callable[[Setup, str, int], Run],
    setup: Setup,
    policies: Sequence[str],
    seeds: Sequence[int],
) -> Mapping[tuple[str, int], Run]:
    futures = {
        (policy, seed): pool.submit(job, setup, policy, seed)
        for policy in policies
        for seed in seeds
    }
    return {key: future.result() for key, future in futures.items()}


def _plan(
    run: Runner,
    setup: Setup,
    policies: Sequence[str],
    seeds: Sequence[int],
    arguments: argparse.Namespace,
) -> int:
    slo = _slo(arguments.slo)
    found = {name: find_replicas(run, setup, name, seeds, slo) for name in policies}
    wanted = ", ".join(f"{name}={limit:g}" for name, limit in slo.items())
    if arguments.json:
        counts = {name: None if hit is None else hit[0] for name, hit in found.items()}
        sys.stdout.write(json.dumps({"slo": slo, "replicas": counts}) + "\n")
    for name, hit in found.items():
        if hit is None:
            say(f"{name}: not even {MOST_REPLICAS} replicas keep {wanted}")
        elif not arguments.json:
            sys.stdout.write(f"{name}: {hit[0]} replicas keep {wanted}\n{table([hit[1]])}")
    return EXIT_NOT_KEPT if None in found.values() else 0


def _write(rows: Sequence[Row], facts: Sequence[str], arguments: argparse.Namespace) -> None:
    if arguments.json:
        sys.stdout.write(json.dumps({"facts": facts, "policies": document(rows)}) + "\n")
    else:
        sys.stdout.write("".join(f"{fact}\n" for fact in facts) + table(rows))
    if arguments.html is not None:
        try:
            Path(arguments.html).write_text(page("Routing policies", facts, rows), "utf-8")
        except OSError as error:
            raise ConfigError(f"--html: {arguments.html}: {error.strerror}") from error


def _facts(trace: Trace, setup: Setup, arguments: argparse.Namespace) -> list[str]:
    asked = f"{trace.name}: {len(trace.requests)} requests at x{setup.speed:g}"
    facts = [
        f"{asked}, {setup.replicas} replicas, {arguments.seeds} seeds, mean ± 95 % interval",
        f"one boundless cache would hold {100 * trace.ceiling:.1f} % of the prompt tokens",
    ]
    if trace.note:
        facts.append(f"{trace.name}: {trace.note}")
    changed = [
        f"{name}={value:g}"
        for part, default in ((setup.faults, Faults()), (setup.model, EngineModel()))
        for name, value in dataclasses.asdict(part).items()
        if value is not None and value != getattr(default, name)
    ]
    return [*facts, *([f"with {', '.join(changed)}"] if changed else [])]


def _policies(arguments: argparse.Namespace) -> list[str]:
    chosen = arguments.policies
    if chosen is None:
        chosen = OWN if arguments.find_replicas else ",".join(NAMES)
    names = [name for name in dict.fromkeys(chosen.split(",")) if name]
    for name in names:
        check(name)
    return names


def _setup(arguments: argparse.Namespace) -> Setup:
    for name in ("replicas", "speed", "seeds", "slow", "gateways", "wrong_constants"):
        if getattr(arguments, name) <= 0:
            raise ConfigError(f"--{name.replace('_', '-')}: must be above 0")
    faults = Faults(
        crash=arguments.crash,
        slow=arguments.slow,
        lost_events=arguments.lost_events,
        frozen=arguments.frozen,
        gateways=arguments.gateways,
        gossip_s=arguments.gossip,
        kv_events=arguments.kv_events,
        constants=arguments.wrong_constants,
    )
    return Setup(arguments.replicas, arguments.speed, _model(arguments.engine), faults)


def _model(settings: Sequence[str]) -> EngineModel:
    values = _numbers("--engine", settings)
    known = dataclasses.asdict(EngineModel())
    for name, value in values.items():
        if name not in known:
            raise ConfigError(f"--engine: `{name}` is none of {', '.join(known)}")
        if value <= 0:
            raise ConfigError(f"--engine: `{name}` must be above 0")
    return msgspec.convert({**known, **values}, EngineModel, strict=False)


def _slo(settings: Sequence[str]) -> dict[str, float]:
    slo = _numbers("--slo", settings)
    if not slo:
        raise ConfigError("--find-replicas needs --slo, such as --slo ttft_p99=2")
    for name in slo:
        if name not in SLO_NAMES:
            raise ConfigError(f"--slo: `{name}` is none of {', '.join(SLO_NAMES)}")
    return slo


def _numbers(option: str, settings: Sequence[str]) -> dict[str, float]:
    values = {}
    for setting in settings:
        for pair in setting.split(","):
            name, _, text = pair.partition("=")
            try:
                values[name] = float(text)
            except ValueError:
                raise ConfigError(f"{option}: expected name=number, not `{pair}`") from None
    return values
