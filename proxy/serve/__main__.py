"""The command line, `headrace COMMAND`.

Everything that can be set is in the configuration file. Exit status 2 and one line for each
problem when something the operator wrote is wrong; never a traceback for that. 1: the running
gateway that was meant is not there, or does not give way.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import io
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any, cast

from core.errors import ConfigError

EXIT_CONFIG = 2

# By name, so that `headrace --version` does not load the gateway, and serving not the demo.
_COMMANDS = {
    "serve": "proxy.serve.commands:serve",
    "reload": "proxy.serve.commands:reload",
    "drain": "proxy.serve.commands:drain",
    "undrain": "proxy.serve.commands:undrain",
    "check": "proxy.serve.commands:check",
    "schema": "proxy.serve.commands:schema",
    "key": "proxy.serve.identities:key",
    "token": "proxy.serve.inspection:token",
    "revoke": "proxy.serve.revocations:revoke",
    "limits": "proxy.serve.limit_commands:limits",
    "budget": "proxy.serve.budget:budget",
    "simulate": "proxy.serve.simulate:simulate",
    "route": "proxy.serve.explain_command:route",
    "top": "proxy.serve.top:top",
    "profile": "proxy.serve.profile.command:profile",
    "demo": "proxy.serve.demo:main",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # what a terminal cannot show is no fault of ours
        sys.stdout.reconfigure(errors="backslashreplace")
    arguments = _parser().parse_args(argv)
    module, _, name = _COMMANDS[arguments.command].partition(":")
    try:
        command = cast(
            Callable[[argparse.Namespace], int], getattr(importlib.import_module(module), name)
        )
        return command(arguments)
    except ConfigError as error:
        for line in str(error).splitlines():
            sys.stderr.write(f"headrace: {line}\n")
        return EXIT_CONFIG
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        return 130


@functools.cache
def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace", description="An edge gateway and reverse proxy for LLM streaming."
    )
    parser.add_argument("--version", action="version", version=f"headrace {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="run the gateway")
    check = commands.add_parser(
        "check", help="say everything that is wrong with a configuration, and bind nothing"
    )
    serve.add_argument(
        "--replace",
        action="store_true",
        help="take the place of the gateway that runs with this configuration, without a gap",
    )
    reload = commands.add_parser(
        "reload", help="have the running gateway read its configuration anew"
    )
    drain = commands.add_parser("drain", help="send nothing new to a replica")
    undrain = commands.add_parser("undrain", help="send to a drained replica again")
    for command in (drain, undrain):
        command.add_argument("replica", metavar="REPLICA", help="its id")
    for command in (serve, reload, drain, undrain, check):
        command.add_argument("-c", "--config", required=True, metavar="FILE", help="the YAML file")
    commands.add_parser("schema", help="print the JSON Schema of the configuration file")
    _add_key(commands)
    _add_token(commands)
    _add_revoke(commands)
    _add_limits(commands)
    _add_budget(commands)
    _add_route(commands)
    _add_profile(commands)
    _add_simulate(commands)
    demo = commands.add_parser("demo", help="run the whole gateway against two fake replicas")
    demo.add_argument("--once", action="store_true", help="ask one question and end")
    demo.add_argument(
        "--port", type=int, default=0, metavar="N", help="the port (default: any free one)"
    )
    return parser


def _add_key(commands: Any) -> None:
    key = commands.add_parser("key", help="API keys")
    new = key.add_subparsers(dest="action", required=True, metavar="ACTION").add_parser(
        "new", help="make a key, shown once, and its entry for the configuration"
    )
    new.add_argument("--tenant", required=True, help="whose key it is")
    new.add_argument("--id", help="names the key (default: the tenant and a few digits)")
    new.add_argument("--user", help="the user inside the tenant")
    new.add_argument("--organisation", help="what the tenant belongs to, for limits")
    new.add_argument("--tier", help="for rules and limits")
    new.add_argument("--group", action="append", help="for rules of access; repeatable")
    new.add_argument("--model", action="append", help="may use it; repeatable (default: all)")
    new.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="RULE=LIMIT[:BURST]",
        help="its own figures for a rule of the limits; repeatable",
    )
    new.add_argument(
        "--priority", type=int, metavar="N", help="-1000 to 1000, the lowest first (default: 0)"
    )
    new.add_argument("--expires", metavar="DATE", help="2027-01-31, or with a time and zone")


def _add_token(commands: Any) -> None:
    token = commands.add_parser("token", help="tokens and API keys of callers")
    inspect = token.add_subparsers(dest="action", required=True, metavar="ACTION").add_parser(
        "inspect", help="say whose a credential is and what it may do, or why it is refused"
    )
    inspect.add_argument("token", help="the credential, or - to read it from stdin")
    inspect.add_argument("-c", "--config", required=True, metavar="FILE", help="the YAML file")
    inspect.add_argument("--model", metavar="NAME", help="only about this model")


def _add_limits(commands: Any) -> None:
    limits = commands.add_parser("limits", help="the limits' buckets in Redis")
    actions = limits.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="how full the buckets of a tenant are")
    reset = actions.add_parser("reset", help="fill the buckets of a tenant")
    for command in (show, reset):
        command.add_argument("tenant", metavar="TENANT", help="or @ORGANISATION")
        command.add_argument("-c", "--config", required=True, metavar="FILE", help="the YAML file")
    show.add_argument("--json", action="store_true", help="for machines")
    reset.add_argument("--rule", metavar="NAME", help="only the buckets of this rule")


def _add_budget(commands: Any) -> None:
    budget = commands.add_parser(
        "budget", help="what exchanges of the running gateway took, against their tiers' budgets"
    )
    budget.add_argument("-c", "--config", required=True, metavar="FILE", help="the YAML file")
    budget.add_argument(
        "--seconds", type=float, default=5.0, metavar="N", help="look for so long (default: 5)"
    )
    top = commands.add_parser("top", help="what the running gateway does now, in the terminal")
    top.add_argument("-c", "--config", required=True, metavar="FILE", help="the YAML file")
    top.add_argument("--once", action="store_true", help="look once and end")
    budget.add_argument("--watch", action="store_true", help="go on until interrupted")
    budget.add_argument("--all", action="store_true", help="at once, all since the start")


def _add_route(commands: Any) -> None:
    route = commands.add_parser("route", help="where requests go")
    explain = route.add_subparsers(dest="action", required=True, metavar="ACTION").add_parser(
        "explain", help="where the running gateway would send a prompt, and why; sends nothing"
    )
    explain.add_argument("-c", "--config", metavar="FILE", help="the YAML file")
    explain.add_argument("--url", metavar="HOST:PORT", help="the admin listener, instead of -c")
    explain.add_argument("--model", required=True, metavar="NAME")
    explain.add_argument("--prompt", required=True, metavar="TEXT", help="- to read it from stdin")
    explain.add_argument(
        "--completion", action="store_true", help="as a completion's prompt, not as a chat"
    )
    explain.add_argument("--max-tokens", type=int, metavar="N", help="of the answer")
    explain.add_argument("--tenant", default="", metavar="NAME", help="whose request it is")
    explain.add_argument("--session", default="", metavar="ID", help="which session it is of")
    explain.add_argument("--json", action="store_true", help="for machines")


def _add_profile(commands: Any) -> None:
    profile = commands.add_parser(
        "profile", help="where a client's milliseconds go, at any OpenAI-compatible endpoint"
    )
    profile.add_argument("url", metavar="URL", help="with or without /v1/chat/completions")
    profile.add_argument("--model", required=True, metavar="NAME")
    profile.add_argument("--prompt", default="Say something about water.", metavar="TEXT")
    profile.add_argument("--tokens", type=int, default=32, metavar="N", help="of each answer")
    profile.add_argument(
        "--requests", type=int, default=6, metavar="N", help="one after another (default: 6)"
    )
    profile.add_argument(
        "--token-env", metavar="NAME", help="the environment variable with the API key or token"
    )
    profile.add_argument("--ca", metavar="FILE", help="certificates to trust instead of the usual")
    profile.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds")


def _add_revoke(commands: Any) -> None:
    revoke = commands.add_parser("revoke", help="refuse a credential from now on, at all gateways")
    revoke.add_argument("name", help="key:ID, jti:ID or user:TENANT/USER")
    revoke.add_argument("-c", "--config", required=True, metavar="FILE", help="the YAML file")
    revoke.add_argument(
        "--days", type=float, default=365.0, metavar="N", help="for so long (default: 365)"
    )
    revoke.add_argument("--undo", action="store_true", help="allow it again")


def _add_simulate(commands: Any) -> None:
    simulate = commands.add_parser(
        "simulate", help="compare routing policies on a trace, or find how many replicas it needs"
    )
    add = simulate.add_argument
    add("trace", metavar="TRACE", help="JSON lines or CSV, also .gz, or `sample`")
    add("--replicas", type=int, default=8, metavar="N", help="(default: 8)")
    add("--speed", type=float, default=1.0, metavar="X", help="times the trace's pace")
    add("--seeds", type=int, default=5, metavar="K", help="runs of each policy (default: 5)")
    add("--policies", metavar="A,B", help="default: all; ours takes prefix_affinity:setting=value")
    add("--requests", type=int, metavar="N", help="only the first N")
    add("--json", action="store_true", help="for machines")
    add("--html", metavar="FILE", help="write a page with charts as well")
    add("--jobs", type=int, metavar="N", help="processes (default: one for each CPU)")
    add("--engine", action="append", default=[], metavar="K=V", help="prefill_rate=8000,chunk=4096")
    add("--find-replicas", action="store_true", help="the fewest replicas that keep --slo")
    add("--slo", action="append", default=[], metavar="K=V", help="ttft_p99=2,goodput=0.95")
    faults = simulate.add_argument_group("faults").add_argument
    faults("--crash", type=float, metavar="SHARE", help="lose a replica after this share of it")
    faults("--slow", type=float, default=1.0, metavar="X", help="one replica takes X times as long")
    faults("--lost-events", type=float, default=0.0, metavar="SHARE", help="of cache events")
    faults("--frozen", type=float, metavar="SHARE", help="metrics stand still from there on")
    faults("--gateways", type=int, default=1, metavar="G", help="so many work side by side")
    faults("--gossip", type=float, metavar="S", help="they hear of others' load after S seconds")
    faults("--kv-events", action="store_true", help="and from replicas of what these hold")
    faults("--wrong-constants", type=float, default=1.0, metavar="X", help="believed speed")


def _version() -> str:
    try:
        return metadata.version("headrace")
    except metadata.PackageNotFoundError:  # run from a checkout that was never installed
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())
