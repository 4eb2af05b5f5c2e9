"""Two configurations compared: what a running gateway cannot take over. Pure.

Static is what was settled before the workers were forked: sockets, their number, whether the
sockets speak TLS and whether they offer HTTP/2. Everything else is dynamic.
"""

from __future__ import annotations

from collections.abc import Iterator

from proxy.config import AdminConfig
from proxy.serve.config import Config

_RESTART = "it needs a restart (or put the old value back)"


def static_changes(old: Config, new: Config) -> list[str]:
    """A sentence for each changed setting that only a restart can change."""
    return [f"{path}: {what}; {_RESTART}" for path, what in _changes(old, new)]


def _changes(old: Config, new: Config) -> Iterator[tuple[str, str]]:
    if set(old.listen.addresses) != set(new.listen.addresses):
        yield "$.listen.addresses", f"was {_list(old)} and is {_list(new)}"
    tls = ["off" if config.listen.tls == "off" else "on" for config in (old, new)]
    if tls[0] != tls[1]:
        yield "$.listen.tls", f"was {tls[0]} and is {tls[1]}"
    engines = [config.listen.http2_engine for config in (old, new)]
    if engines[0] != engines[1] and "off" in engines:
        yield "$.listen.http2_engine", f"was {engines[0]} and is {engines[1]}"
    if old.admin != new.admin:
        yield "$.admin.address", f"was {_place(old.admin)} and is {_place(new.admin)}"
    if old.workers != new.workers:
        yield "$.workers", f"was {old.workers} and is {new.workers}"
    if new.workers == 1 and new.routing.hosts.redis and not old.routing.hosts.redis:
        yield "$.routing.hosts.redis", "was false, and a single worker has no core that could do it"
    if old.routing.tiers.slower != new.routing.tiers.slower:
        yield "$.routing.tiers", "needs more or fewer bits in shared memory than before"
    if old.run_dir != new.run_dir:
        yield "$.run_dir", f"was {old.run_dir or 'not given'} and is {new.run_dir or 'not given'}"


def _list(config: Config) -> str:
    return ", ".join(config.listen.addresses)


def _place(admin: AdminConfig | None) -> str:
    return "not given" if admin is None else admin.address
