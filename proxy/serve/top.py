"""The command `top`: the figures of the live page in a terminal."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from core.errors import ConfigError
from proxy.serve.admin_client import CannotAsk, follow
from proxy.serve.budget import OVER_SHARE
from proxy.serve.config import load_config
from proxy.serve.supervise.supervisor import say

EXIT_UNREACHABLE = 1
_CLEAR = "\x1b[H\x1b[J"
_RECENT = 8

View = Mapping[str, Any]


def top(arguments: argparse.Namespace) -> int:
    """Exit status 1: the gateway does not answer (any more). Raises ConfigError."""
    config = load_config(arguments.config)
    if config.admin is None:
        raise ConfigError("$.admin: the running gateway is asked there; give it an address")
    try:
        for number, event in enumerate(follow(config.admin.address.parsed, "/live")):
            if arguments.once and not number:
                continue  # rates need two looks
            size = shutil.get_terminal_size()
            lines = list(render(json.loads(event)))
            if not arguments.once:
                sys.stdout.write(_CLEAR)
                lines = [line[: size.columns] for line in lines[: size.lines - 1]]
            sys.stdout.write("\n".join(lines) + "\n")
            sys.stdout.flush()
            if arguments.once:
                return 0
    except CannotAsk as error:
        say(str(error))
        return EXIT_UNREACHABLE
    say("the gateway has ended")
    return EXIT_UNREACHABLE


def render(view: View) -> Iterator[str]:
    """One document of the page's feed as lines."""
    state = "ready" if view["ready"] else "NOT READY: " + "; ".join(view["reasons"])
    yield f"headrace  {state}  workers {view['workers']}  configuration {view['generation']}"
    traffic = view["traffic"]
    ttft, itl = traffic["ttft_ms"], traffic["itl_ms"]
    yield (
        f"{traffic['requests_per_s']} requests/s  {traffic['in_flight']} in flight  "
        f"{traffic['failures_per_s']} failures/s  {traffic['output_tokens_per_s']} tokens/s out  "
        f"{_share(traffic['cached_share'])} of prompts cached"
    )
    yield (
        f"TTFT p50 {_ms(ttft['p50'])} p99 {_ms(ttft['p99'])} ms  "
        f"ITL p50 {_ms(itl['p50'])} p99 {_ms(itl['p99'])} ms"
    )
    yield from _table(
        ("replica", "state", "in flight", "pending", "live", "cache"),
        [
            (row["id"], _state(row, view["workers"]), row["in_flight"], row["pending_tokens"],
             row["live_tokens"], row["cache"])
            for row in view["replicas"]
        ],
    )  # fmt: skip
    yield from _table(
        ("tier", "part", "allowed", "p50", "p95", "p99", "late", ""),
        [
            (row["tier"], row["part"], _ms(row["allowed_ms"]), _ms(row["p50"]), _ms(row["p95"]),
             _ms(row["p99"]), _share(row["late"]), _verdict(row))
            for row in view["tiers"]
        ],
    )  # fmt: skip
    for row in view["slower"]:
        means = f"{_ms(row['usual_ms'])} -> {_ms(row['now_ms'])} ms"
        yield f"slower than before: {row['phase']}, {means}"
    yield from _table(
        ("limit", "unit", "asked", "refused"),
        [(row["rule"], row["unit"], row["asked"], row["refused"]) for row in view["limits"]],
    )
    yield from _table(
        ("failure", "phase", "count"),
        [(row["reason"], row["phase"], row["count"]) for row in view["failures"]],
    )
    yield from _table(
        ("time", "request", "tenant", "model", "outcome", "ttft", "total"),
        [
            (row.get("time", "")[11:23], row["request_id"][:8], row.get("tenant", "-"),
             row.get("model", "-"), f"{row.get('status', '-')} {row.get('reason', '')}",
             _ms(row.get("ttft_ms")), _ms(row.get("total_ms")))
            for row in view["recent"][:_RECENT]
        ],
    )  # fmt: skip


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Columns as wide as what is in them; nothing without rows."""
    if not rows:
        return
    cells = [tuple(map(_plain, row)) for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    yield ""
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _plain(value: object) -> str:
    """Names come from clients: no control characters reach the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(value))


def _state(row: View, workers: int) -> str:
    if row["healthy_in"] >= workers:
        return "well"
    return "partly away" if row["healthy_in"] else "AWAY"


def _verdict(row: View) -> str:
    if row["allowed_ms"] is None:
        return ""
    return "OVER" if row["late"] > OVER_SHARE else "PASS"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
