"""`python -m bench.gate_bar`: how often is the gate wrong, and what does it find?

Two gateways of this tree, alike, each behind a relay, asked as `headrace-loadtest gate` asks them:

- `--runs` real runs of one against the other (A/A): every verdict but *pass* is a false alarm
- 40 runs put together from windows of those, arms named by a coin: false alarms again
- 20 such runs with 3 % of the candidate's answers so late that its p99 is a fifth longer: found?
- a real run in which the candidate's relay holds answers until their end, and one in which it sends
  each chunk a millisecond later: found?

A run takes a minute and a half. Verdicts of single runs, as with `--once`.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import uvloop

from bench.processes import Processes, accepts, benchmark, free_port
from bench.rig import start_gateway
from loadtest import gate
from loadtest.gate import Answer
from loadtest.gate_command import WINDOW_S
from loadtest.lanes import parse_target
from loadtest.runner import Runner
from loadtest.scenario import load_scenario

ALIKE, LATER = 40, 20
REPLICA = ["--token-ms", "5", "--prefill-base-ms", "10"]
LOADTEST = [sys.executable, "-m", "loadtest"]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gate_bar",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=5, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with benchmark("gate") as (processes, folder):
        base, candidate, buffering, late = build(processes, folder)
        runs = []
        for number in range(arguments.runs):
            answers = measured(base, candidate, arguments.seed + number)
            runs.append(answers)
            say(f"A/A {number + 1}", answers, arguments.seed)
        resampled([answers for answers in runs if answers], arguments.seed)
        for what, port in (("buffering relay", buffering), ("1 ms for each chunk", late)):
            say(what, measured(base, port, arguments.seed), arguments.seed)
    return 0


def build(processes: Processes, folder: Path) -> tuple[int, int, int, int]:
    """Ports: the base, the candidate, and the candidate behind each relay that does wrong."""
    ups = (free_port(), free_port())
    for port in ups:
        replica = [*LOADTEST, "replica", "--port", str(port), "--model", "demo", *REPLICA]
        ready = lambda port=port: accepts(port)  # noqa: E731
        processes.start(f"replica-{port}", replica, ready)
    gateways = []
    for name in ("base", "candidate"):
        own = folder / name
        own.mkdir()
        port = free_port()
        plain = {"addresses": [f"127.0.0.1:{port}"], "tls": "off"}
        limits = {"store": "memory", "rules": [{"name": "all", "limit": 10**9}]}
        start_gateway(processes, own, port, ups, listen=plain, auth="none", limits=limits)
        gateways.append(port)
    found = []
    one, two = gateways
    for to, how in ((one, "plain"), (two, "plain"), (two, "buffer"), (two, "delay")):
        port = free_port()
        command = [sys.executable, "-m", "bench.gate_relay", str(port), str(to), how]
        processes.start(f"relay-{port}", command, lambda port=port: accepts(port))
        found.append(port)
    return found[0], found[1], found[2], found[3]


def measured(base: int, candidate: int, seed: int) -> list[Answer]:
    scenario = load_scenario("gate")
    first, other = (parse_target(f"http://127.0.0.1:{port}", None) for port in (base, candidate))
    runner = Runner(scenario, seed, first, lambda _: {}, others=[other])
    samples = uvloop.run(runner.run())
    return gate.answers_of(samples.records, samples.began_at + scenario.warm_up_s)


def say(what: str, answers: Sequence[Answer], seed: int) -> None:
    verdict = gate.judge(answers, window_s=WINDOW_S, seed=seed)
    reasons = "; ".join(verdict.reasons[:2])
    print(f"{what:22} {verdict.word:13} {verdict.windows} windows  {reasons}", flush=True)


def resampled(runs: Sequence[Sequence[Answer]], seed: int) -> None:
    """Windows of real runs, put together anew."""
    windows: list[list[Answer]] = []
    for answers in runs:
        parts: dict[int, list[Answer]] = {}
        for answer in answers:
            parts.setdefault(int(answer.due_s / WINDOW_S), []).append(answer)
        windows += parts.values()
    rng = random.Random(seed)
    alike = Counter(_verdict(windows, rng, delayed=False) for _ in range(ALIKE))
    later = Counter(_verdict(windows, rng, delayed=True) for _ in range(LATER))
    print(f"{ALIKE} resampled A/A runs: {dict(alike)}")
    print(f"{LATER} resampled runs with a p99 a fifth longer: {dict(later)}", flush=True)


def _verdict(windows: Sequence[list[Answer]], rng: random.Random, *, delayed: bool) -> str:
    answers = []
    for number in range(20):
        swap = rng.random() < 0.5
        for each in rng.choice(windows):
            due_s = number * WINDOW_S + each.due_s % WINDOW_S
            answers.append(replace(each, due_s=due_s, arm=1 - each.arm if swap else each.arm))
    if delayed:
        answers = _delayed(answers, rng)
    return gate.judge(answers, window_s=WINDOW_S, seed=rng.randrange(1 << 30)).word


def _delayed(answers: list[Answer], rng: random.Random) -> list[Answer]:
    candidate = [each for each in answers if each.arm == 1]
    times = gate.with_delays([each.ttft for each in candidate], rng)
    late = [replace(each, ttft=ttft) for each, ttft in zip(candidate, times, strict=True)]
    return [each for each in answers if each.arm == 0] + late


if __name__ == "__main__":
    sys.exit(main())
