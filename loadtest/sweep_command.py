"""`headrace-loadtest sweep`: one scenario at rising rates. Performs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from loadtest import flags, run_command, sweep, table
from loadtest.result import Result
from loadtest.scenario import ScenarioError, load_scenario, shipped


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "sweep",
        help="run a scenario at rising rates",
        description="Run a scenario at rising rates, until one is INVALID. Exit status: 0 a rate "
        "was good, 1 none was, 2 it could not run, 130 interrupted.",
    )
    parser.add_argument("scenario", help=f"a YAML file, or one of: {', '.join(shipped())}")
    flags.add_target_flags(parser)
    parser.add_argument("--rates", required=True, metavar="R,R,...", help="sessions per second")
    parser.add_argument("--ttft-p95", type=float, metavar="MS", help="a good rate's bound")
    parser.add_argument("--out", type=Path, metavar="DIR", help="a folder rate-R for each in there")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    results: list[tuple[float, Result]] = []
    try:
        scenario = run_command.changed(load_scenario(arguments.scenario), arguments)
        for rate in _rates(arguments.rates):
            found = run_command.measure(run_command.at_rate(scenario, rate), arguments)
            print(f"{rate:g} sessions/s: {table.verdict_line(found)}", flush=True)
            results.append((rate, found))
            if arguments.out:
                run_command.write(found, arguments.out / f"rate-{rate:g}")
            if found.interrupted or not found.verdict.valid:
                break
    except (run_command.CannotRun, ScenarioError, OSError) as error:
        print(f"headrace-loadtest: {error}", file=sys.stderr)
        return run_command.CANNOT
    print(f"\n{sweep.render(results, arguments.ttft_p95)}")
    if results[-1][1].interrupted:
        return run_command.INTERRUPTED
    good = any(sweep.is_good(found, arguments.ttft_p95) for _, found in results)
    return 0 if good else run_command.INVALID


def _rates(text: str) -> list[float]:
    try:
        return sweep.rates_of(text)
    except ValueError as error:
        raise run_command.CannotRun(f"--rates: {text!r}: {error}") from error
