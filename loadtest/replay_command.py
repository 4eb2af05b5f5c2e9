"""`headrace-loadtest replay`: a trace against one URL. Performs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from loadtest import flags, run_command, table, traces
from loadtest.run_command import CANNOT, INTERRUPTED, INVALID, CannotRun
from loadtest.runner import Runner
from loadtest.summary import summarize


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "replay",
        help="send a recorded trace to a URL",
        description="Send the requests of a trace at their times, in the format of Mooncake, Azure "
        "or BurstGPT, plain or gzip. Texts are made up; what requests share they share here too. "
        "Exit status as for run.",
    )
    parser.add_argument("trace", type=Path)
    flags.add_target_flags(parser)
    parser.add_argument("--speed", type=float, help="times as fast (default: 1)")
    parser.add_argument("--rate", type=float, help="instead: requests per second on average")
    parser.add_argument(
        "--jitter", type=float, default=0.0, metavar="S", help="move each by up to so much"
    )
    parser.add_argument("--requests", type=int, metavar="N", help="only the first of them")
    parser.add_argument("--most-output", type=int, metavar="N", help="tokens of one answer at most")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="write result.json and report.html there"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        rows = _rows(arguments)
        speed = _speed(arguments, rows)
        scenario = traces.scenario_of(arguments.trace.name, rows, speed, arguments.model or "demo")
        scenario = run_command.changed(scenario, arguments)
        seed = run_command.seed_of(arguments)
        planned = traces.plan_of(
            rows, scenario, speed=speed, jitter_s=max(0.0, arguments.jitter), seed=seed
        )
        planned = [session for session in planned if session.due_s < scenario.total_s]
        target = run_command.target_of(scenario, arguments, arguments.url)
        headers_of = run_command.headers_of(arguments)
        if arguments.out:
            arguments.out.mkdir(parents=True, exist_ok=True)
    except (CannotRun, traces.TraceError, OSError) as error:
        print(f"headrace-loadtest: {error}", file=sys.stderr)
        return CANNOT
    about = run_command.about_run(scenario, arguments, seed)
    about["trace"] = {"file": arguments.trace.name, "requests": len(planned), "speed": speed}

    def make(first: int, share: int) -> Runner:
        return Runner(scenario, seed, target, headers_of, planned=planned, first=first, share=share)

    try:
        samples = run_command.watched(make, scenario, arguments)
    except CannotRun as error:
        print(f"headrace-loadtest: {error}", file=sys.stderr)
        return CANNOT
    with run_command.unhurried():
        found = summarize(scenario, seed, samples, about)
    print(table.render(found))
    if arguments.out:
        run_command.write(found, arguments.out)
    if found.interrupted:
        return INTERRUPTED
    return 0 if found.verdict.valid else INVALID


def _rows(arguments: argparse.Namespace) -> list[traces.Row]:
    rows = traces.load(arguments.trace)[: arguments.requests]
    if arguments.most_output is not None:
        rows = [traces.shortened(row, arguments.most_output) for row in rows]
    return rows


def _speed(arguments: argparse.Namespace, rows: list[traces.Row]) -> float:
    if arguments.rate is not None and arguments.speed is not None:
        raise CannotRun("give --rate or --speed, not both")
    speed = arguments.speed if arguments.speed is not None else 1.0
    if arguments.rate is not None:
        speed = arguments.rate / traces.mean_rate(rows)
    if not speed > 0:
        raise CannotRun("--rate and --speed: give a number above 0")
    return speed
