"""The gateway as its supervisor sees it: the configuration in force, built, and how to build the
next one."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Collection, Mapping
from typing import Literal, cast

from core.describe import counted, did_you_mean
from core.errors import ConfigError
from core.loading import parse, read, read_bounded
from proxy.listen.sockets import Sockets
from proxy.serve import app, core_process
from proxy.serve.config import Config
from proxy.serve.config_warnings import warnings
from proxy.serve.differences import differences
from proxy.serve.discovery import LONGEST_LIST, merged
from proxy.serve.finder import check_library, look_once
from proxy.serve.floors import unsafe_libraries
from proxy.serve.references import missing_references, referenced_files
from proxy.serve.supervise.messages import Found
from proxy.serve.supervise.names import CORE
from proxy.serve.supervise.reloader import Candidate
from proxy.serve.supervise.supervisor import say
from proxy.serve.supervise.watch import Identity, identity, look_at
from proxy.serve.supervise.worker import Reloadable, Stop

SETTLE_S = 10.0
"""A gateway that takes another's place accepts connections once it can serve them, or after so
many seconds: until then the other one goes on."""


def read_config(
    path: str,
    seen: dict[str, Identity],
    drained: Collection[str] = (),
    found: Mapping[str, tuple[str, ...]] | None = None,
) -> tuple[bytes, Config]:
    """The file at `path`, with everything there that it points at, the replicas of its
    `replicas_file`, those `found` in DNS, and what is `drained` among them. `seen` is filled with
    all these files as they were before. Raises ConfigError."""
    if faults := unsafe_libraries():
        raise ConfigError("\n".join(faults))
    seen[path] = identity(path)
    text = read(path)
    config = parse(text, path, Config)
    seen.update(look_at(referenced_files(config)))
    if faults := list(missing_references(config)):
        raise ConfigError("\n".join(faults))
    if config.discover:
        check_library()
    if config.replicas_file is None and not drained and not (config.discover and found):
        return text, config
    listed = None
    if config.replicas_file is not None:
        listed = str(config.replicas_file), read_bounded(config.replicas_file, LONGEST_LIST)
    text = merged(text, os.path.dirname(os.path.abspath(path)), listed, drained, found)
    config = parse(text, path, Config)
    seen.update({file: identity(file) for file in referenced_files(config) if file not in seen})
    if faults := list(missing_references(config)):
        raise ConfigError("\n".join(faults))
    return text, config


def look_up(config: Config, found: dict[str, tuple[str, ...]]) -> None:
    """Ask DNS, for a moment, for what is not in `found` yet, and put it there. Raises
    ConfigError."""
    queries = {query for source in config.discover for query in source.queries}
    if missing := sorted(queries - found.keys()):
        answered, troubles = look_once(missing, config.dns)
        found.update(answered)
        for source in config.discover:
            if not any(query in found for query in source.queries):
                for query in source.queries:
                    say(f"DNS {troubles.get(query) or f'{query}: there is no record'}")


def warn(prepared: app.Prepared) -> None:
    """Say what is allowed but seldom meant, and what of TLS needs care."""
    for warning in [*warnings(prepared.config), *prepared.tls_warnings()]:
        say(f"warning: {warning}")


class Service:
    """`path` is absolute. `taken_over`: the sockets are another gateway's still. `found`: the
    replicas that DNS named."""

    def __init__(
        self,
        path: str,
        prepared: app.Prepared,
        seen: dict[str, Identity],
        sockets: Sockets,
        *,
        taken_over: bool,
        found: dict[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.path = path
        self.seen = seen
        self._prepared = prepared
        self._sockets = sockets
        self._drained: set[str] = set()
        self._found = found or {}
        self._settle_s = SETTLE_S if taken_over else 0.0
        self._reloads = prepared.shared.metrics_board.supervisor.counter(
            "headrace_config_reloads_total", "Attempts to use a changed configuration", ("result",)
        )
        _share_memory()

    def __repr__(self) -> str:
        return f"<Service {self.path} generation={self._prepared.generation}>"

    @property
    def _config(self) -> Config:
        return self._prepared.config

    @property
    def workers(self) -> int:
        return self._config.workers

    @property
    def core(self) -> bool:
        return self._prepared.shared.host is not None

    @property
    def scheme(self) -> str:
        return "http" if self._config.listen.tls == "off" else "https"

    @property
    def delay_s(self) -> float:
        return self._config.propagation_s

    @property
    def drain_s(self) -> float:
        return self._config.drain_s

    @property
    def watching(self) -> bool:
        return self._config.reload.watch

    @property
    def secret(self) -> bytes:
        return self._prepared.shared.secret

    async def work(self, index: int, stop: Stop, ready: Callable[[Reloadable], None]) -> None:
        if index == CORE:
            await core_process.serve(self._prepared, stop, ready)
            return
        await app.serve(self._prepared, self._sockets, index, stop, ready, settle_s=self._settle_s)

    def on_death(self, index: int) -> None:
        shared = self._prepared.shared
        if index == CORE:
            shared.metrics_board.fold(self.workers)
            if shared.host is not None:
                shared.host.core_died()
            return
        if shared.host is not None:
            shared.host.worker_died(index)
        shared.metrics_board.fold(index)
        shared.states.for_worker(index).clear()
        shared.loads.for_worker(index).clear()

    def drain(self, replica_id: str, on: bool) -> str:
        ids = [replica.replica.id for replica in self._config.replicas]
        if replica_id in ids and on:
            self._drained.add(replica_id)
        elif replica_id in self._drained:
            self._drained.discard(replica_id)
        elif replica_id in ids:
            return f"the replica {replica_id} is not drained by this command"
        else:
            return f"no replica has the id {replica_id}{did_you_mean(replica_id, ids)}"
        return ""

    @property
    def hosts(self) -> Mapping[str, tuple[str, ...]]:
        return self._found

    def found(self, said: Found) -> str:
        changed = [query for query in said.hosts if said.hosts[query] != self._found.get(query, ())]
        self._found.update(said.hosts)
        words = (f"DNS {query}: {counted(len(said.hosts[query]), 'host')}" for query in changed)
        return ", ".join(words)

    def took_over(self) -> None:
        """The sockets are ours alone."""
        self._settle_s = 0.0

    # --- the next configuration

    def load(self, seen: dict[str, Identity]) -> Candidate:
        text, config = read_config(self.path, seen, self._drained, self._found)
        if any(query not in self._found for one in config.discover for query in one.queries):
            look_up(config, self._found)
            text, config = read_config(self.path, seen, self._drained, self._found)
        prepared = app.prepare(config, previous=self._prepared)
        warn(prepared)
        return Candidate(text, tuple(differences(self._config, config)), prepared)

    def adopt(self, candidate: Candidate) -> None:
        self._prepared = cast(app.Prepared, candidate.built)
        self._prepared.commit()
        _share_memory()

    def count(self, result: Literal["applied", "refused"]) -> None:
        self._reloads.labels(result).inc()


def _share_memory() -> None:
    """What was made so far is shared with workers forked from now on: collecting it in them would
    copy its pages."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
