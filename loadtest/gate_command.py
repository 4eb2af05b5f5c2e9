"""`headrace-loadtest gate`: is a candidate slower than its base? Performs."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from loadtest import builds, flags, gate, run_command
from loadtest.gate import FAIL, Verdict
from loadtest.record import OK, UNFINISHED
from loadtest.run_command import CANNOT, INTERRUPTED, CannotRun
from loadtest.runner import Runner
from loadtest.scenario import Scenario, ScenarioError, load_scenario

WINDOW_S = 4.0


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "gate",
        help="is one build slower than another?",
        description="Send each request to one of two gateways, drawn at random, and tell whether "
        "the candidate is slower. A regression is one that a second run finds as well. Exit "
        "status: 0 pass, 1 regression, 2 nothing can be said, 130 interrupted.",
    )
    parser.add_argument("scenario", nargs="?", default="gate", help="as for run (default: gate)")
    parser.add_argument("--base-url", metavar="URL", help="a gateway that runs")
    parser.add_argument("--candidate-url", metavar="URL", help="another one that runs")
    parser.add_argument(
        "--base", metavar="REF", help="build this revision of the repository and run it"
    )
    parser.add_argument(
        "--candidate",
        metavar="REF",
        help="and compare this one with it (default: the working tree as it is)",
    )
    parser.add_argument("--once", action="store_true", help="no second run after a regression")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write gate.json there")
    flags.add_run_flags(parser)
    parser.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class Arms:
    """What is compared. `said`: how, for the record."""

    base_url: str
    candidate_url: str
    said: dict[str, str]


def run(arguments: argparse.Namespace) -> int:
    try:
        scenario = run_command.changed(load_scenario(arguments.scenario), arguments)
        if arguments.out:
            arguments.out.mkdir(parents=True, exist_ok=True)
        with _arms(arguments) as arms:
            verdict = _judged(scenario, arguments, arms)
    except (CannotRun, ScenarioError, builds.CannotBuild, OSError) as error:
        print(f"headrace-loadtest: {error}", file=sys.stderr)
        return CANNOT
    if verdict is None:
        return INTERRUPTED
    print("\n".join(gate.render(verdict)))
    if arguments.out:
        arguments.url = arms.base_url
        about = run_command.about_run(scenario, arguments, arguments.seed or 0)
        path = arguments.out / "gate.json"
        document = gate.document(verdict, {**about, **arms.said})
        path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1))
        print(f"written: {path}")
    return gate.EXITS[verdict.word]


@contextlib.contextmanager
def _arms(arguments: argparse.Namespace) -> Iterator[Arms]:
    urls = (arguments.base_url, arguments.candidate_url)
    if all(urls) and arguments.base is None:
        yield Arms(*urls, {"base": urls[0], "candidate": urls[1]})
    elif arguments.base is not None and not any(urls):
        with builds.two_gateways(arguments.base, arguments.candidate) as (base, candidate):
            said = {"base": arguments.base, "candidate": arguments.candidate or "working tree"}
            yield Arms(base, candidate, said)
    else:
        raise CannotRun("gate: give either --base-url and --candidate-url, or --base")


def _judged(scenario: Scenario, arguments: argparse.Namespace, arms: Arms) -> Verdict | None:
    """None: interrupted."""
    first = _one(scenario, arguments, arms)
    if first is None or first.word != FAIL or arguments.once:
        return first
    print("\n".join([*gate.render(first), "", "Once more, to see whether it happens again:"]))
    second = _one(scenario, arguments, arms)
    return None if second is None else gate.together(first, second)


def _one(scenario: Scenario, arguments: argparse.Namespace, arms: Arms) -> Verdict | None:
    seed = run_command.seed_of(arguments)
    base, candidate = (
        run_command.target_of(scenario, arguments, url)
        for url in (arms.base_url, arms.candidate_url)
    )
    headers = run_command.headers_of(arguments)

    def make(first: int, share: int) -> Runner:
        return Runner(scenario, seed, base, headers, others=[candidate], first=first, share=share)

    samples = run_command.watched(make, scenario, arguments)
    if samples.interrupted:
        return None
    begin_at = samples.began_at + scenario.warm_up_s
    failed = [0, 0]
    for record in samples.records:
        if record.due_at >= begin_at and record.outcome not in (OK, UNFINISHED):
            failed[record.arm] += 1
    answers = gate.answers_of(samples.records, begin_at)
    return gate.judge(answers, window_s=WINDOW_S, seed=seed, failed=failed)
