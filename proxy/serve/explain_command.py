"""The command `route explain`: where the running gateway would send a prompt, and why."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from core.describe import counted
from core.errors import ConfigError
from proxy.listen.address import Address, parse_address
from proxy.serve.admin_client import CannotAsk, post
from proxy.serve.config import load_config
from proxy.serve.supervise.supervisor import say

PATH = "/route/explain"
EXIT_UNREACHABLE = 1
_TERMS = ("queue", "own", "others", "room", "slow_start", "session", "total")
_HEADINGS = (
    "replica",
    "cached",
    "in flight",
    "pending",
    *("queue", "own", "others", "room", "slow start", "session", "total"),
    "",
)
_REASONS = {
    "waits": "It would wait: every replica has enough to do",
    "no_replica": "It would be refused: no replica of this model is up",
    "replicas_full": "It would be refused: every replica has as many requests as it may",
    "kv_too_small": "It would be refused: no replica's cache is large enough",
}


def route(arguments: argparse.Namespace) -> int:
    """Exit status 1: the gateway does not answer, or not to this. Raises ConfigError."""
    address = _address(arguments)
    text = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    request: dict[str, object] = {"model": arguments.model}
    if arguments.completion:
        request["prompt"] = text
    else:
        request["messages"] = [{"role": "user", "content": text}]
    if arguments.max_tokens is not None:
        request["max_tokens"] = arguments.max_tokens
    question = {"request": request, "tenant": arguments.tenant, "session": arguments.session}
    try:
        answer = json.loads(post(address, PATH, json.dumps(question).encode()))
    except CannotAsk as error:
        say(str(error))
        return EXIT_UNREACHABLE
    sys.stdout.write(json.dumps(answer, indent=2) + "\n" if arguments.json else render(answer))
    return 0


def _address(arguments: argparse.Namespace) -> Address:
    if arguments.url is not None:
        try:
            return parse_address(arguments.url.removeprefix("http://").rstrip("/"))
        except ValueError as error:
            raise ConfigError(f"--url: {error}") from error
    if arguments.config is None:
        raise ConfigError("give the configuration with -c, or the admin listener with --url")
    config = load_config(arguments.config)
    if config.admin is None:
        raise ConfigError("$.admin: the running gateway is asked there; give it an address")
    return config.admin.address.parsed


def render(answer: Mapping[str, Any]) -> str:
    """The answer of the admin listener as a table; times in milliseconds."""
    about = "" if answer["exact"] else "about "
    blocks = counted(answer["blocks"], "block")
    lines = [f"{answer['model']}: {about}{answer['prompt_tokens']} prompt tokens, {blocks}"]
    rows = [_HEADINGS, *[_row(target, answer["choice"]) for target in answer["targets"]]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines += ["  ".join(_cells(row, widths)).rstrip() for row in rows]
    if answer["choice"] is None:
        reason = answer["reason"]
        lines.append(_REASONS.get(reason, f"It would be refused: {reason}") + ".")
    if answer["waiting"]:
        lines.append(f"{counted(answer['waiting'], 'request')} already waiting.")
    lines.append(
        "Milliseconds. total = queue + own + room + slow start + session + weight * others"
    )
    return "\n".join(lines) + "\n"


def _cells(row: tuple[str, ...], widths: list[int]) -> Iterator[str]:
    for column, (text, width) in enumerate(zip(row, widths, strict=True)):
        yield text.ljust(width) if column in (0, len(widths) - 1) else text.rjust(width)


def _row(target: Mapping[str, Any], choice: str | None) -> tuple[str, ...]:
    score = target["score"]
    terms = ["-" if score is None else f"{score[name] * 1e3:.2f}" for name in _TERMS]
    chosen = "<- chosen" if target["replica"] == choice else target["obstacle"]
    in_flight = target["in_flight"] + round(target["foreign_in_flight"])
    pending = target["pending_tokens"] + round(target["foreign_tokens"])
    return (
        target["replica"],
        str(target["cached_tokens"]),
        str(in_flight),
        str(pending),
        *terms,
        chosen,
    )
