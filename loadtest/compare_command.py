"""`headrace-loadtest compare`: what has changed from one result to another. Performs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec

from loadtest import compare, result

_STATUS = {compare.ALIKE: 0, compare.FASTER: 0, compare.SLOWER: 1, compare.UNCLEAR: 2}


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "compare",
        help="compare two results",
        description="Compare two results. Exit status: 0 alike or faster, 1 B is slower, "
        "2 unclear, or one is INVALID or no result.",
    )
    parser.add_argument("a", type=Path, help="a result.json, or its folder")
    parser.add_argument("b", type=Path, help="another one")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        a, b = result.read(arguments.a), result.read(arguments.b)
    except result.ResultError as error:
        print(f"headrace-loadtest: {error}", file=sys.stderr)
        return 2
    found = compare.compare(a, b)
    print(msgspec.json.encode(found).decode() if arguments.json else compare.render(found))
    return _STATUS[found.word]
