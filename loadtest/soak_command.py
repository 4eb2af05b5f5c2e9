"""`headrace-loadtest soak`: does a server grow over an hour's requests? Performs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec

from loadtest import flags, run_command, soak, table
from loadtest.run_command import CANNOT, INTERRUPTED, CannotRun
from loadtest.scenario import ScenarioError, load_scenario, shipped

HOUR_S = 3600.0


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "soak",
        help="does a server grow over an hour's requests?",
        description="Run a scenario faster, with as many requests as an hour has at its own rate, "
        "and tell whether memory, descriptors, threads and tasks of the server's processes grow. "
        "Exit status: 0 flat, 1 growing, 2 nothing can be said, 130 interrupted.",
    )
    parser.add_argument(
        "scenario", nargs="?", default="soak", help=f"a file, or one of: {', '.join(shipped())}"
    )
    flags.add_target_flags(parser)
    parser.add_argument("--hours", type=float, default=1.0, metavar="H", help="(default: 1)")
    parser.add_argument(
        "--speed", type=float, default=6.0, help="times the scenario's rate (default: 6)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="write soak.json, result.json, report.html there"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        if not arguments.pid and arguments.metrics is None:
            raise CannotRun("soak: give the server's --pid, or its --metrics")
        if not arguments.speed > 0 or not arguments.hours > 0:
            raise CannotRun("--hours and --speed: give numbers above 0")
        scenario = load_scenario(arguments.scenario)
        scenario = run_command.at_rate(scenario, run_command.rate_of(scenario) * arguments.speed)
        if arguments.duration is None:
            arguments.duration = arguments.hours * HOUR_S / arguments.speed
        scenario = run_command.changed(scenario, arguments)
        if arguments.out:
            arguments.out.mkdir(parents=True, exist_ok=True)
        found = run_command.measure(scenario, arguments)
    except (CannotRun, ScenarioError, OSError) as error:
        print(f"headrace-loadtest: {error}", file=sys.stderr)
        return CANNOT
    end_s = scenario.warm_up_s + found.measured_s
    verdict = soak.judge(
        found.series, end_s=end_s, hour_s=HOUR_S / arguments.speed, counts=found.counts
    )
    print(table.render(found), soak.render(verdict), sep="\n\n")
    if arguments.out:
        run_command.write(found, arguments.out)
        text = msgspec.json.format(msgspec.json.encode(verdict), indent=1)
        (arguments.out / "soak.json").write_bytes(text)
    if found.interrupted:
        return INTERRUPTED
    return soak.EXITS[verdict.word]
