"""`headrace-loadtest run`: one scenario against one URL. Performs."""

from __future__ import annotations

import argparse
import contextlib
import re
import secrets
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from loadtest import clients, flags, machine, report, result, table
from loadtest.happenings import Happenings
from loadtest.lanes import Target, client_context, parse_target
from loadtest.minting import KeyFileError, Mint
from loadtest.record import Samples
from loadtest.runner import HeadersOf, Runner
from loadtest.scenario import (
    Burst,
    Closed,
    Model,
    Ramp,
    Scenario,
    ScenarioError,
    load_scenario,
    shipped,
)
from loadtest.summary import summarize
from loadtest.watch import Watch

INVALID = 1
CANNOT = 2
INTERRUPTED = 130
TASKS = "headrace_tasks"

_SECRET = ("authorization", "api-key", "x-api-key", "cookie")


class CannotRun(Exception):
    """One sentence: what is wrong with the command."""


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        help="run a scenario against a URL",
        description="Run a scenario against a URL. Exit status: 0 the figures are valid, 1 they "
        "are not, 2 it could not run, 130 interrupted.",
    )
    parser.add_argument("scenario", help=f"a YAML file, or one of: {', '.join(shipped())}")
    flags.add_target_flags(parser)
    parser.add_argument("--rate", type=float, help="sessions per second, instead of the scenario's")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="write result.json and report.html there"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        scenario = changed(load_scenario(arguments.scenario), arguments)
        if arguments.rate is not None:
            scenario = at_rate(scenario, arguments.rate)
        if arguments.out:
            arguments.out.mkdir(parents=True, exist_ok=True)  # before the run, not after it
        found = measure(scenario, arguments)
    except (CannotRun, ScenarioError, OSError) as error:
        print(f"headrace-loadtest: {error}", file=sys.stderr)
        return CANNOT
    print(table.render(found))
    if arguments.out:
        write(found, arguments.out)
    if found.interrupted:
        return INTERRUPTED
    return 0 if found.verdict.valid else INVALID


def write(found: result.Result, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path, page = folder / "result.json", folder / "report.html"
    path.write_bytes(result.encode(found))
    page.write_text(report.render(found), encoding="utf-8")
    print(f"written: {path}, {page}")


def changed(scenario: Scenario, arguments: argparse.Namespace) -> Scenario:
    """The scenario with what the command says instead. CannotRun."""
    changes: dict[str, Any] = {"headers": {**scenario.headers, **_headers(arguments.header)}}
    if arguments.duration is not None:
        if arguments.duration <= 0:
            raise CannotRun("--duration: give seconds above 0")
        changes["duration_s"] = arguments.duration
    if arguments.warm_up is not None:
        changes["warm_up_s"] = max(0.0, arguments.warm_up)
    if arguments.model:
        changes["models"] = [Model(name=arguments.model)]
    if arguments.processes is not None:
        if arguments.processes < 1:
            raise CannotRun("--processes: give a number above 0")
        changes["processes"] = arguments.processes
    if arguments.http2 is not None:
        changes["connections"] = msgspec.structs.replace(
            scenario.connections, http2_streams=max(0, arguments.http2)
        )
    if arguments.phases:
        changes["headers"]["x-headrace-timing"] = "1"
    return msgspec.structs.replace(scenario, **changes)


def rate_of(scenario: Scenario) -> float:
    """Sessions per second. CannotRun where that has no one meaning."""
    arrivals = scenario.arrivals
    if isinstance(arrivals, Closed | Ramp | Burst):
        kind = type(arrivals).__name__.lower()
        raise CannotRun(f"--rate: the arrivals of this scenario are of kind {kind}")
    return arrivals.rate


def at_rate(scenario: Scenario, rate: float) -> Scenario:
    """The same arrivals at another rate. CannotRun where that has no one meaning."""
    arrivals = scenario.arrivals
    rate_of(scenario)
    if rate <= 0:
        raise CannotRun("--rate: give a number above 0")
    replaced = msgspec.structs.replace(arrivals, rate=rate)
    return msgspec.structs.replace(scenario, arrivals=replaced)


def _headers(given: list[str]) -> dict[str, str]:
    headers = {}
    for line in given:
        name, colon, value = line.partition(":")
        if not colon or not name.strip() or "\n" in line or "\r" in line:
            raise CannotRun(f"--header: {line!r} is not 'NAME: VALUE'")
        headers[name.strip().lower()] = value.strip()
    return headers


def measure(scenario: Scenario, arguments: argparse.Namespace) -> result.Result:
    """Run it. CannotRun; OSError when a file cannot be read."""
    seed = seed_of(arguments)
    target = target_of(scenario, arguments, arguments.url)
    about = about_run(scenario, arguments, seed)
    headers = headers_of(arguments)

    def make(first: int, share: int) -> Runner:
        return Runner(scenario, seed, target, headers, first=first, share=share)

    samples = watched(make, scenario, arguments)
    with unhurried():
        return summarize(scenario, seed, samples, about)


@contextlib.contextmanager
def unhurried() -> Iterator[None]:
    """Ctrl-C ends a run; what it has found is still to be worked out, which takes a second."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def seed_of(arguments: argparse.Namespace) -> int:
    return arguments.seed if arguments.seed is not None else secrets.randbelow(1 << 31)


def watched(make: clients.Make, scenario: Scenario, arguments: argparse.Namespace) -> Samples:
    """Run it, with progress on a terminal, until it ends or is told to. CannotRun."""
    show = progress(scenario.total_s) if not arguments.quiet and sys.stderr.isatty() else None
    events = Happenings(scenario.happenings, commands_of(scenario, arguments.do))
    try:
        with watch_of(arguments) as watch, events:

            def began(at: float) -> None:
                watch.begin()
                events.begin(at)

            samples = clients.run(make, scenario.processes, began, show)
    except clients.ClientDied as error:
        raise CannotRun(str(error)) from error
    finally:
        if show is not None:
            print(f"\r{'':78}\r", end="", file=sys.stderr, flush=True)
    samples.counters = watch.counters()
    samples.seen, samples.notes, samples.happened = watch.seen, watch.notes, events.done
    samples.notes += [
        f"{each.name} did not happen: {each.problem}" for each in events.done if each.problem
    ]
    return samples


def commands_of(scenario: Scenario, given: Sequence[str]) -> dict[str, str]:
    """CannotRun unless each happening of the scenario has its command."""
    commands = {}
    for text in given:
        name, equals, command = text.partition("=")
        if not equals or not command:
            raise CannotRun(f"--do: {text!r} is not NAME=COMMAND")
        commands[name] = command
    missing = sorted({each.do for each in scenario.happenings} - set(commands))
    if missing:
        raise CannotRun(f"give --do {missing[0]}=COMMAND: this scenario has it happen")
    return commands


def watch_of(arguments: argparse.Namespace) -> Watch:
    """CannotRun."""
    gauges = arguments.gauge or [TASKS]
    try:
        return Watch(arguments.pid, arguments.metrics, gauges, replicas=arguments.replica)
    except (ProcessLookupError, OverflowError) as error:
        raise CannotRun("--pid: no such process") from error


def progress(total_s: float) -> clients.Show:
    """A line on stderr that is written anew."""
    began = time.monotonic()

    def show(begun: int, running: int) -> None:
        passed = time.monotonic() - began
        filled = min(30, int(30 * passed / total_s))
        bar = f"[{'#' * filled}{'.' * (30 - filled)}]"
        line = f"{bar} {passed:.0f}/{total_s:.0f} s  {begun} begun, {running} running"
        print(f"\r{line:78}", end="", file=sys.stderr, flush=True)

    return show


def target_of(scenario: Scenario, arguments: argparse.Namespace, url: str) -> Target:
    """CannotRun."""
    tls = None
    if url.startswith("https:"):
        resume = scenario.connections.resume
        tls = client_context(
            resume=resume,
            ca_file=arguments.ca,
            insecure=arguments.insecure,
            http2=scenario.connections.http2_streams > 0,
        )
    try:
        return parse_target(url, tls)
    except ValueError as error:
        raise CannotRun(f"--url: {error}") from error


def headers_of(arguments: argparse.Namespace) -> HeadersOf:
    if arguments.token_key is None:
        return lambda session: {}
    claims: dict[str, Any] = {}
    for text in arguments.token_claim:
        name, equals, value = text.partition("=")
        if not equals:
            raise CannotRun(f"--token-claim: {text!r} is not NAME=VALUE")
        claims[name] = _json_or_text(value)
    try:
        mint = Mint(arguments.token_key.read_bytes(), arguments.token_kid, claims)
    except KeyFileError as error:
        raise CannotRun(f"--token-key: {arguments.token_key}: {error}") from error
    now, users = int(time.time()), max(1, arguments.token_users)
    tokens = [
        {"authorization": f"Bearer {mint.token(f'user-{n}', now, arguments.token_lifetime)}"}
        for n in range(users)
    ]
    return lambda session: tokens[session % users]


def _json_or_text(value: str) -> Any:
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value


def about_run(scenario: Scenario, arguments: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Everything that a repetition needs; no secrets."""
    described = msgspec.to_builtins(scenario)
    described["headers"] = {
        name: "(left out)" if name.lower() in _SECRET else value
        for name, value in scenario.headers.items()
    }
    return {
        "scenario": described,
        "seed": seed,
        "url": arguments.url,
        "command": _without_secrets(sys.argv),
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.machine(),
        "versions": machine.versions(),
        "attached": {path.name: without_secrets(path.read_text()) for path in arguments.attach},
    }


_TOLD = re.compile(
    r"(?im)^(.*\b(?:\w*password|\w*secret|\w*_token|token|\w*api_?key)\b[\"']?\s*[:=]\s*)\S.*$"
)
_LOGIN = re.compile(r"://[^/@\s]+@")


def without_secrets(text: str) -> str:
    """A file's text, without the values of what is named like a secret and logins in URLs."""
    return _LOGIN.sub("://(left out)@", _TOLD.sub(r"\1(left out)", text))


def _without_secrets(words: list[str]) -> str:
    kept = []
    for word in words:
        name, colon, _ = word.removeprefix("--header=").partition(":")
        hidden = colon and name.strip().lower() in _SECRET
        kept.append(f"{word.partition(':')[0]}: (left out)" if hidden else word)
    return shlex.join(kept)
