"""The options that several commands share. Decides."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_target_flags(parser: argparse.ArgumentParser) -> None:
    """What is tested, how it is reached, and what changes the scenario."""
    parser.add_argument("--url", required=True, help="such as https://localhost:8443")
    add_run_flags(parser)


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """As `add_target_flags`, but for the URL."""
    parser.add_argument("--duration", type=float, metavar="S", help="seconds that are measured")
    parser.add_argument("--warm-up", type=float, metavar="S", help="seconds before them")
    parser.add_argument("--model", help="instead of the scenario's models")
    parser.add_argument("--seed", type=int, help="repeats a run's schedule (default: any)")
    parser.add_argument(
        "--header", action="append", default=[], metavar="'NAME: VALUE'", help="of every request"
    )
    parser.add_argument("--ca", metavar="FILE", help="trust these certificates alone (PEM)")
    parser.add_argument("--insecure", action="store_true", help="trust any certificate")
    parser.add_argument(
        "--http2", type=int, metavar="N", help="by HTTP/2, up to N requests on each connection"
    )
    parser.add_argument("--processes", type=int, metavar="N", help="so many clients share the load")
    parser.add_argument(
        "--phases", action="store_true", help="ask for Server-Timing (X-Headrace-Timing: 1)"
    )
    parser.add_argument(
        "--do",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="what happens where the scenario says NAME (by the shell; may be repeated)",
    )
    parser.add_argument(
        "--attach",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="show this file in the report, such as the server's configuration (what looks like a "
        "secret is left out; may be repeated)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    watch = parser.add_argument_group(
        "the server's processes, where they run on this machine, and its replicas"
    )
    watch.add_argument(
        "--pid",
        type=int,
        action="append",
        default=[],
        metavar="PID",
        help="see what it and its descendants use (may be repeated)",
    )
    watch.add_argument("--metrics", metavar="URL", help="and some of its metrics (Prometheus)")
    watch.add_argument(
        "--gauge",
        action="append",
        metavar="NAME",
        help="which ones (may be repeated; default: headrace_tasks)",
    )
    watch.add_argument(
        "--replica",
        action="append",
        default=[],
        metavar="URL",
        help="a replica behind the server: what it did, by its /metrics (may be repeated)",
    )
    tokens = parser.add_argument_group("tokens (JWT), minted before the run")
    tokens.add_argument("--token-key", type=Path, metavar="FILE", help="private key, PEM")
    tokens.add_argument("--token-kid", metavar="ID", help="the key's id")
    tokens.add_argument("--token-claim", action="append", default=[], metavar="NAME=VALUE")
    tokens.add_argument("--token-users", type=int, default=1, metavar="N", help="subjects")
    tokens.add_argument("--token-lifetime", type=int, default=3600, metavar="S")
