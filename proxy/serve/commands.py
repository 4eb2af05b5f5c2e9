"""The commands `serve`, `check` and `schema`. Each returns an exit status or raises ConfigError."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from core.errors import ConfigError
from core.loading import schema as json_schema
from proxy.serve import app
from proxy.serve.config import Config, load_config, warnings
from proxy.serve.floors import unsafe_libraries
from proxy.serve.references import missing_references
from proxy.serve.supervisor import Supervisor, say
from proxy.serve.worker import Ready
from proxy.sockets import bind_all, raise_descriptor_limit
from proxy.tls import ServerTls


def check(arguments: argparse.Namespace) -> int:
    """Load, validate and build everything; bind nothing."""
    config = _loaded(arguments.config)
    _warn(config, app.prepare(config).tls)
    sys.stdout.write(
        f"OK: {arguments.config}: {_count(config.models, 'model')}, "
        f"{_count(config.replicas, 'replica')}, "
        f"{_count(config.listen.addresses, 'address', 'addresses')}\n"
    )
    return 0


def serve(arguments: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT."""
    config = _loaded(arguments.config)
    raise_descriptor_limit()
    prepared = app.prepare(config)
    _warn(config, prepared.tls)
    admin = config.admin.address.parsed if config.admin is not None else None
    sockets = bind_all([address.parsed for address in config.listen.addresses], admin)

    async def work(index: int, stop: asyncio.Event, ready: Ready) -> None:
        await app.serve(prepared, sockets, index, stop, ready)

    def on_death(index: int) -> None:
        prepared.shared.metrics_board.fold(index)
        prepared.shared.states.for_worker(index).clear()
        prepared.shared.loads.for_worker(index).clear()

    return Supervisor(
        work,
        workers=config.workers,
        sockets=sockets,
        drain_s=config.drain_s,
        on_death=on_death,
        scheme="http" if config.listen.tls == "off" else "https",
    ).run()


def schema(arguments: argparse.Namespace) -> int:
    """Print the JSON Schema of the configuration file."""
    json.dump(json_schema(Config), sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0


def _loaded(path: str) -> Config:
    """The configuration, with everything there that it points at."""
    if faults := unsafe_libraries():
        raise ConfigError("\n".join(faults))
    config = load_config(path)
    if faults := list(missing_references(config)):
        raise ConfigError("\n".join(faults))
    return config


def _warn(config: Config, tls: ServerTls | None) -> None:
    """Say what is allowed but seldom meant, and what of TLS needs care."""
    for warning in [*warnings(config), *(tls.warnings() if tls is not None else ())]:
        say(f"warning: {warning}")


def _count(things: tuple[object, ...], one: str, many: str = "") -> str:
    return f"{len(things)} {one if len(things) == 1 else many or one + 's'}"
