"""The commands `serve`, `reload`, `drain`, `undrain`, `check` and `schema`. Each returns an exit
status or raises ConfigError."""

from __future__ import annotations

import argparse
import functools
import json
import os
import signal
import sys

from core.describe import counted
from core.errors import ConfigError
from core.loading import schema as json_schema
from proxy.line_sink import append_standard_streams
from proxy.listen.sockets import bind_all, raise_descriptor_limit
from proxy.serve import app
from proxy.serve.config import Config
from proxy.serve.discovery import described
from proxy.serve.host_memory import HostMemory
from proxy.serve.supervise.channel import Channel
from proxy.serve.supervise.control import ControlSocket, NobodyThere, visit
from proxy.serve.supervise.messages import DrainReplica, Outcome, Rejected, Reload
from proxy.serve.supervise.replace import CannotReplace, Predecessor
from proxy.serve.supervise.run_dir import NO_PLACE, control_path, control_path_of
from proxy.serve.supervise.service import Service, look_up, read_config, warn
from proxy.serve.supervise.supervisor import Supervisor, say
from proxy.serve.supervise.watch import Identity

EXIT_NOBODY = 1
_RELOAD_S = 120.0
"""Two phases of a reload before it, and two of its own."""


def check(arguments: argparse.Namespace) -> int:
    """Load, validate and build everything; bind nothing."""
    _, config = read_config(arguments.config, {})
    warn(app.prepare(config))
    sys.stdout.write(
        f"OK: {arguments.config}: {counted(len(config.models), 'model')}, "
        f"{counted(len(config.replicas), 'replica')}, "
        f"{counted(len(config.listen.addresses), 'address', 'addresses')}\n"
    )
    for source in config.discover:
        sys.stdout.write(f"discover: {described(source, config.dns)}\n")
    return 0


def serve(arguments: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT."""
    for number in (signal.SIGHUP, signal.SIGUSR2):  # not to die of one that comes too early
        signal.signal(number, signal.SIG_IGN)
    append_standard_streams()
    path = os.path.abspath(arguments.config)
    seen: dict[str, Identity] = {}
    _, config = read_config(path, seen)
    raise_descriptor_limit()
    place = control_path(config.run_dir, path, os.environ)
    if not arguments.replace:
        _check_alone(place)  # before the addresses are found to be in use, which says less
    try:
        predecessor = _predecessor(place) if arguments.replace else None
    except CannotReplace as error:
        say(f"cannot replace the running gateway: {error}")
        return EXIT_NOBODY
    try:
        found: dict[str, tuple[str, ...]] = {}
        look_up(config, found)
        if predecessor is not None:  # what DNS does not say now
            found = {**predecessor.found, **found}
        if found:
            _, config = read_config(path, seen, found=found)
        return _supervisor(path, seen, config, place, predecessor, found=found).run()
    finally:
        if predecessor is not None:
            predecessor.close()


def _predecessor(place: str | None) -> Predecessor | None:
    """The gateway whose place is to be taken; None: nobody is there. Raises CannotReplace."""
    if place is None:
        raise CannotReplace(NO_PLACE)
    try:
        return Predecessor(visit(place, takes_descriptors=True))
    except NobodyThere as nobody:
        say(f"there is nothing to replace: {nobody}")
        return None


def _supervisor(
    path: str,
    seen: dict[str, Identity],
    config: Config,
    place: str | None,
    predecessor: Predecessor | None,
    *,
    found: dict[str, tuple[str, ...]],
) -> Supervisor:
    secret, inherited = b"", []
    if predecessor is not None:
        secret, inherited = predecessor.secret, predecessor.sockets
    shared = app.Shared.make(config.workers, secret, HostMemory.make(config))
    prepared = app.prepare(config, shared)
    warn(prepared)
    admin = config.admin.address.parsed if config.admin is not None else None
    sockets = bind_all([address.parsed for address in config.listen.addresses], admin, inherited)
    return Supervisor(
        Service(path, prepared, seen, sockets, taken_over=predecessor is not None, found=found),
        sockets,
        make_control=functools.partial(_make_control, place, replacing=predecessor is not None),
        predecessor=predecessor,
    )


def _make_control(place: str | None, *, replacing: bool) -> ControlSocket | None:
    """Raises ConfigError when another gateway is there that is not to be replaced."""
    if place is None:
        return None
    if not replacing:
        _check_alone(place)
    return ControlSocket(place)


def _check_alone(place: str | None) -> None:
    """Raises ConfigError when another gateway is there."""
    if place is None:
        return
    try:
        visitor = visit(place)
    except NobodyThere:
        return
    visitor.channel.close()
    raise ConfigError(
        f"$.run_dir: a gateway (pid {visitor.pid}) answers at {place} already; take its "
        "place with `headrace serve --replace`, or give this one another `run_dir`"
    )


def reload(arguments: argparse.Namespace) -> int:
    """Have the running gateway read its configuration anew, and say what came of it."""
    return _ask(Reload(os.path.abspath(arguments.config)))


def drain(arguments: argparse.Namespace) -> int:
    """Have the running gateway send nothing new to a replica."""
    return _ask(DrainReplica(os.path.abspath(arguments.config), arguments.replica))


def undrain(arguments: argparse.Namespace) -> int:
    """Have the running gateway send to a replica again."""
    return _ask(DrainReplica(os.path.abspath(arguments.config), arguments.replica, drain=False))


def _ask(question: Reload | DrainReplica) -> int:
    """Of the gateway that runs with this configuration."""
    place = control_path_of(question.path, os.environ)
    if place is None:
        say(NO_PLACE)
        return EXIT_NOBODY
    try:
        channel = visit(place).channel
    except NobodyThere as error:
        say(str(error))
        return EXIT_NOBODY
    try:
        channel.send(question)
        return _outcome(channel, place)
    finally:
        channel.close()


def _outcome(channel: Channel, place: str) -> int:
    """What the gateway answers. Raises ConfigError with what it has against the configuration."""
    for message in channel.wait(_RELOAD_S):
        if isinstance(message, Outcome) and message.result == "refused":
            raise ConfigError(message.reason)
        if isinstance(message, Outcome):
            changed = ", ".join(message.changed) or "nothing"
            sys.stdout.write(
                f"OK: generation {message.generation} is in force; changed: {changed}\n"
            )
            return 0
        if isinstance(message, Rejected):
            say(message.reason)
            return EXIT_NOBODY
    say(f"the gateway at {place} did not answer")
    return EXIT_NOBODY


def schema(arguments: argparse.Namespace) -> int:
    """Print the JSON Schema of the configuration file."""
    json.dump(json_schema(Config), sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0
