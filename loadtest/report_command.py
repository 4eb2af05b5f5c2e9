"""`headrace-loadtest report`: the page of a run, made anew from its result. Performs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from loadtest import compare, report, result, table


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        help="make the page of a run from its result.json",
        description="Print a result and write its page, report.html, beside it.",
    )
    parser.add_argument("result", type=Path, help="a result.json, or its folder")
    parser.add_argument(
        "--against",
        type=Path,
        action="append",
        default=[],
        metavar="RESULT",
        help="compare with this run, in the page (may be repeated)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="the page, elsewhere")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        found = result.read(arguments.result)
        path = arguments.out or _beside(arguments.result)
        against = [
            (f"Against {other}", compare.compare(result.read(other), found))
            for other in arguments.against
        ]
        path.write_text(report.render(found, against), encoding="utf-8")
    except (result.ResultError, OSError) as error:
        print(f"headrace-loadtest: {error}", file=sys.stderr)
        return 2
    print(table.render(found))
    print(f"written: {path}")
    return 0


def _beside(given: Path) -> Path:
    return given / "report.html" if given.is_dir() else given.with_name("report.html")
