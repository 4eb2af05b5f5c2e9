"""`python -m bench.reality TRACE`: a trace's beginning through the real gateway, and simulated.

For each policy four fake replicas that publish KV events, one gateway with one worker, and the
trace's first requests at their instants, `--speed` times as fast (by default so that a run takes
half a minute), on engines as much faster than the simulator's. The simulator then gets the very
same requests: instants, lengths, blocks of the very tokens. The client shares the machine.

The simulated engine differs from the fake one: it prefills in chunks, and decoding waits for them.
Attention is free in both, and a long prefill without neighbours takes as long in both. The
simulated router hears no KV events: its index is approximate.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import time
import urllib.request
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import uvloop
import yaml

from bench.processes import BenchError, Processes, accepts, free_port
from loadtest import prompts, traces
from loadtest.lanes import parse_target
from loadtest.record import OK, Samples
from loadtest.replica.options import DEMO_MODEL
from loadtest.replica.tokens import Speech
from loadtest.runner import Runner
from loadtest.scenario import Scenario
from loadtest.schedule import Session
from routing.blocks import chain
from routing.config import Priors, RoutingConfig
from routing.simulator.engine import EngineModel
from routing.simulator.figures import quantile
from routing.simulator.gateway import OwnPolicy
from routing.simulator.trace import Request
from routing.simulator.world import Faults, World

REPLICAS = 4
RUN_S = 30.0
BLOCK = 64
ENGINE_BLOCK = 16
MODEL = "demo"
POLICIES = ("prefix_affinity", "least_load", "round_robin")
TOKENIZER = DEMO_MODEL / "tokenizer.json"
TEMPLATE = DEMO_MODEL / "chat_template.jinja"
READY_S = 30.0
LOG_S = 5.0


@dataclass(frozen=True, slots=True)
class Served:
    """One answered request, real or simulated. Sizes in tokens."""

    replica: str
    prompt: int
    predicted: int
    cached: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run came to. `ttft_s` from the instants that requests were due; `late_s`: how late
    the client was with each, sorted."""

    served: Sequence[Served]
    ttft_s: Sequence[float]
    failed: int
    late_s: Sequence[float] = ()

    @property
    def hit(self) -> float:
        return sum(one.cached for one in self.served) / sum(one.prompt for one in self.served)

    @property
    def ttft_mean_s(self) -> float:
        return statistics.fmean(self.ttft_s)

    @property
    def balance(self) -> float:
        """Computed prompt tokens of the busiest replica over the mean."""
        computed: dict[str, int] = {}
        for one in self.served:
            computed[one.replica] = computed.get(one.replica, 0) + one.prompt - one.cached
        return max(computed.values()) * REPLICAS / sum(computed.values())

    @property
    def as_predicted(self) -> float:
        """The share with predicted <= delivered <= predicted + one block."""
        good = [one.predicted <= one.cached <= one.predicted + BLOCK for one in self.served]
        return sum(good) / len(good)

    @property
    def too_much(self) -> float:
        """The share with predicted > delivered."""
        return sum(one.predicted > one.cached for one in self.served) / len(self.served)


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent, and how fast the engines are."""

    scenario: Scenario
    seed: int
    planned: Sequence[Session]
    model: EngineModel
    priors: Priors

    def routing(self, policy: str) -> dict[str, Any]:
        """The section of the configuration, for both."""
        priors = msgspec.to_builtins(self.priors)
        return {"policy": policy, "block_tokens": BLOCK, "priors": priors}

    @property
    def prefill_rate(self) -> float:
        """Of the fake replicas: the simulated engine's, with a step's own time in each chunk."""
        model = self.model
        return model.chunk / (model.chunk / model.prefill_rate + model.step_s)


def make_load(trace: Path, count: int, speed: float | None, jitter_s: float, seed: int) -> Load:
    """traces.TraceError, OSError."""
    rows = traces.load(trace)[:count]
    pace = speed or max(rows[-1].at_s / RUN_S, 1e-3)
    scenario = traces.scenario_of(trace.name, rows, pace, MODEL)
    planned = traces.plan_of(rows, scenario, speed=pace, jitter_s=jitter_s / pace, seed=seed)
    usual, believed = EngineModel(), Priors()
    model = EngineModel(
        prefill_rate=usual.prefill_rate * pace,
        knee=1e12,
        step_s=usual.step_s / pace,
        per_sequence=0.0,
        per_token=0.0,
    )
    priors = Priors(
        prefill_tokens_per_second=believed.prefill_tokens_per_second * pace,
        decode_seconds_per_sequence=believed.decode_seconds_per_sequence / pace,
        decode_seconds_per_token=believed.decode_seconds_per_token / pace,
    )
    print(f"{trace.name}: {len(rows)} requests, {pace:.2f} times as fast, seed {seed}")
    return Load(scenario, seed, planned, model, priors)


# -- simulated ------------------------------------------------------------------------------------
def requests_of(load: Load) -> Iterator[Request]:
    """What the gateway will see of each planned request."""
    speech, corpus = Speech(TOKENIZER, TEMPLATE), prompts.Corpus(load.seed)
    for number, session in enumerate(load.planned):
        body = prompts.body(session, 0, [prompts.question(session, 0, corpus)])
        ids = speech.chat_ids(body)
        blocks = chain(array("I", ids).tobytes(), BLOCK, 0)
        output = session.turns[0].output_tokens
        yield Request(number, session.due_s, len(ids), output, tuple(blocks))


def simulated(load: Load, requests: Sequence[Request], policy: str) -> Outcome:
    world = World(requests, REPLICAS, load.model, BLOCK, faults=Faults(), seed=load.seed)
    config = msgspec.convert(load.routing(policy), RoutingConfig)
    jobs = world.run(OwnPolicy(world, config))
    done = [job for job in jobs if job.first_at is not None]
    served = [Served(str(j.replica), j.request.length, j.predicted, j.cached) for j in done]
    ttft_s = [(job.first_at or 0.0) - job.offered_at for job in done]
    return Outcome(served, ttft_s, len(jobs) - len(done))


# -- real -----------------------------------------------------------------------------------------
def real(load: Load, policy: str) -> Outcome:
    """BenchError when something does not come up, or does not follow the replicas' caches."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        with Processes(folder) as processes:
            try:
                ports = [_start_replica(processes, load, number) for number in range(REPLICAS)]
                port, admin = _start_gateway(processes, folder, load.routing(policy), ports)
                _until_ready(admin, policy, READY_S)
                target = parse_target(f"http://127.0.0.1:{port}", None)
                planned = load.planned
                runner = Runner(load.scenario, load.seed, target, lambda _: {}, planned=planned)
                samples = uvloop.run(runner.run())
                _until_ready(admin, policy, LOG_S)
                return _outcome(samples, _logged(folder / "access.log", samples))
            except BenchError as error:
                raise BenchError(f"{error}\n{processes.last_words()}") from error


def _start_replica(processes: Processes, load: Load, number: int) -> int:
    port = free_port()
    speeds = ["--prefill-tokens-per-s", f"{load.prefill_rate:.0f}"]
    speeds += ["--token-ms", f"{load.model.step_s * 1e3:.4f}"]
    sizes = ["--block-size", str(ENGINE_BLOCK), "--max-model-len", "1000000"]
    sizes += ["--num-blocks", str(load.model.kv_tokens // ENGINE_BLOCK)]
    command = [sys.executable, "-m", "loadtest", "replica", "--port", str(port)]
    command += ["--kv-events", "maps", *speeds, *sizes]
    processes.start(f"replica-{number}", command, lambda: accepts(port))
    return port


def _start_gateway(
    processes: Processes, folder: Path, routing: dict[str, Any], replicas: Sequence[int]
) -> tuple[int, int]:
    """Its port and that of its metrics."""
    port, admin = free_port(), free_port()
    model = {"name": MODEL, "tokenizer": str(TOKENIZER), "chat_template": str(TEMPLATE)}
    document = {
        "listen": {"addresses": [f"127.0.0.1:{port}"], "tls": "off"},
        "auth": "none",
        "admin": {"address": f"127.0.0.1:{admin}"},
        "workers": 1,
        "propagation_s": 0,
        "log": {"access": str(folder / "access.log")},
        "models": [model],
        "replicas": [{"url": f"http://127.0.0.1:{each}", "model": MODEL} for each in replicas],
        "routing": routing,
    }
    path = folder / "headrace.yaml"
    path.write_text(yaml.safe_dump(document))
    command = [sys.executable, "-m", "proxy.serve", "serve", "-c", str(path)]
    processes.start("gateway", command, lambda: accepts(port) and accepts(admin), measured=True)
    return port, admin


def _until_ready(admin: int, policy: str, patience_s: float) -> None:
    """Until every replica may be chosen and, where caches matter, is followed exactly."""
    name, label = "headrace_replica_kv_state", 'state="exact"'
    if policy != POLICIES[0]:
        name, label = "headrace_replica_healthy", ""
    deadline = time.monotonic() + patience_s
    wanted = re.compile(rf"^{name}\{{[^}}]*{label}[^}}]*\}} 1(?:\.0)?$", re.M)
    while (found := len(wanted.findall(_metrics(admin)))) < REPLICAS:
        if time.monotonic() > deadline:
            raise BenchError(f"{name} is 1 of {found} replicas, not of {REPLICAS}")
        time.sleep(0.1)


def _metrics(admin: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics", timeout=5) as answer:
        text: str = answer.read().decode()
    return text


def _logged(path: Path, samples: Samples) -> list[Served]:
    """The answered requests of the access log, once all of them are in it."""
    answered = sum(record.outcome == OK for record in samples.records)
    deadline = time.monotonic() + LOG_S
    while True:
        lines = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
        done = [line for line in lines if line.get("reason") == "ok"]
        if len(done) >= answered:
            break
        if time.monotonic() > deadline:
            raise BenchError(f"the access log has {len(done)} of {answered} answers")
        time.sleep(0.1)
    names = ("replica", "prompt_tokens", "predicted_cached_tokens", "cached_tokens")
    return [Served(*(line[name] for name in names)) for line in done]


def _outcome(samples: Samples, served: Sequence[Served]) -> Outcome:
    answered = [record for record in samples.records if record.outcome == OK]
    return Outcome(
        served,
        [record.first_at - record.due_at for record in answered],
        len(samples.records) - len(answered),
        sorted(record.sent_at - record.due_at for record in samples.records),
    )


# -- side by side ---------------------------------------------------------------------------------
def row(policy: str, where: str, outcome: Outcome) -> str:
    ttft_ms = sorted(each * 1e3 for each in outcome.ttft_s)
    found = (
        f"{policy:16} {where:10}{outcome.hit * 100:7.1f}{outcome.ttft_mean_s * 1e3:9.1f}"
        f"{quantile(ttft_ms, 0.5):9.1f}{quantile(ttft_ms, 0.99):9.1f}{outcome.balance:9.2f}"
        f"{outcome.failed:8d}"
    )
    if policy == POLICIES[0]:  # the others predict nothing
        found += f"{outcome.as_predicted * 100:14.2f}{outcome.too_much * 100:10.2f}"
    return found


def ranking(outcomes: dict[str, Outcome]) -> str:
    return " < ".join(sorted(outcomes, key=lambda name: outcomes[name].ttft_mean_s))


def compare(load: Load, policies: Sequence[str]) -> None:
    requests = list(requests_of(load))
    tokens = sum(request.length for request in requests)
    print(f"{tokens:,} prompt tokens in {load.scenario.duration_s:.0f} s; TTFT in ms")
    titles = f"{'policy':16} {'':10}{'hit %':>7}{'mean':>9}{'p50':>9}{'p99':>9}{'balance':>9}"
    print(titles + f"{'failed':>8}{'as predicted %':>15}{'above %':>9}")
    in_reality: dict[str, Outcome] = {}
    in_simulation: dict[str, Outcome] = {}
    for policy in policies:
        in_simulation[policy] = simulated(load, requests, policy)
        print(row(policy, "simulated", in_simulation[policy]), flush=True)
        outcome = in_reality[policy] = real(load, policy)
        late = f"   (client late by {quantile(outcome.late_s, 0.99) * 1e3:.1f} ms, p99)"
        print(row(policy, "real", outcome) + late, flush=True)
    expected, found = ranking(in_simulation), ranking(in_reality)
    print(f"by mean TTFT, simulated: {expected}")
    print(f"by mean TTFT, real:      {found} ({'the same' if found == expected else 'DIFFERENT'})")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.reality",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("--requests", type=int, default=600, help="the first so many")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--speed", type=float, help="of the trace and of the engines")
    parser.add_argument("--jitter", type=float, default=0.0, metavar="S", help="trace's seconds")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    policies = asked.policies.split(",")
    if unknown := set(policies) - set(POLICIES):
        parser.error(f"--policies: of {', '.join(POLICIES)}, not {', '.join(sorted(unknown))}")
    try:
        compare(
            make_load(asked.trace, asked.requests, asked.speed, asked.jitter, asked.seed), policies
        )
    except (BenchError, traces.TraceError, OSError) as error:
        print(f"bench.reality: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
