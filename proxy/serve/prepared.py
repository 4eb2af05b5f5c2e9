"""What is made of a configuration before any worker needs it: everything that can fail.

So `headrace check` finds what is wrong, workers share what is large, and a running worker loads a
changed configuration beside its event loop. What has not changed is taken over from before.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from auth.board import Board
from auth.fetcher import Fetcher
from auth.key_ring import KeyRing
from auth.revocation import read_file
from auth.verifier import fetcher_for
from backend.pool import Pool
from backend.upstream_tls import build_contexts
from core.errors import ConfigError
from core.identity import identity
from core.load_board import LoadBoard
from core.metrics import Metrics, MetricsBoard
from core.shared_memory import StateBoard
from proxy.recent import RecentBoard
from proxy.serve.config import Config
from proxy.serve.host_memory import HostMemory
from proxy.serve.places import Places, room_for
from proxy.serve.reload import static_changes
from proxy.tls.server import ALPN, HTTP1_ALPN, ServerTls
from proxy.tls.server import Staged as StagedTls
from ratelimit.config import LimitsConfig
from ratelimit.limiter import Limiter
from ratelimit.shared_store import SharedBuckets
from routing.prompter import Prompter


@dataclass(frozen=True, slots=True)
class Shared:
    """What the processes share, whatever the configuration says: made once, before the first fork,
    and never replaced. `started`: Unix seconds. `secret`: seeds block hashes and the keys of TLS
    tickets unless the configuration does. `host`: what several workers and their core know in
    common; None for a worker that is alone."""

    started: int
    metrics_board: MetricsBoard
    states: StateBoard
    loads: LoadBoard
    key_board: Board
    buckets: SharedBuckets
    recent: RecentBoard
    secret: bytes
    host: HostMemory | None

    @classmethod
    def make(cls, workers: int, secret: bytes = b"", host: HostMemory | None = None) -> Shared:
        """`secret`: of the gateway whose place is taken."""
        return cls(
            started=int(time.time()),
            metrics_board=MetricsBoard(workers if host is None else workers + 1),
            states=StateBoard(workers),
            loads=LoadBoard(workers),
            key_board=Board(),
            buckets=SharedBuckets(workers),
            recent=RecentBoard(workers),
            secret=secret or os.urandom(32),
            host=host,
        )


@dataclass(frozen=True, slots=True)
class Marks:
    """Of sections with all that they point at: while equal, what was made of them is good."""

    auth: Hashable
    key_sets: dict[str, Hashable]
    limits: Hashable
    usage: Hashable
    replica_tls: dict[str, Hashable]
    hashing: Hashable

    @classmethod
    def of(cls, config: Config) -> Marks:
        issuers = () if config.auth == "none" else config.auth.issuers
        routing = config.routing
        return cls(
            auth=identity((config.auth, config.limits_redis if _follows(config) else None)),
            key_sets={i.issuer: identity((i.jwks, i.algorithms)) for i in issuers},
            limits=identity(config.named_limits),
            usage=_usage_mark(config),
            replica_tls={r.replica.id: identity((r.url, r.tls)) for r in config.replicas},
            hashing=(routing.block_tokens, identity(routing.secret)),
        )


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the workers share of one configuration. `generation` counts from 1, by one for each
    `prepare` that had a `previous`."""

    config: Config
    generation: int
    shared: Shared
    marks: Marks
    tls: ServerTls | None
    tls_staged: StagedTls | None
    upstream_tls: dict[str, ssl.SSLContext]
    fetchers: dict[str, Fetcher]
    api_keys: KeyRing
    prompter: Prompter
    cache_secret: str
    places: Places

    def cold_for(self, after: Prepared) -> bool:
        """Whether nothing is known of what replicas hold once `after` is in force."""
        policies = {self.config.routing.policy, after.config.routing.policy}
        # Only that policy tells the index what is sent.
        lapsed = len(policies) > 1 and "prefix_affinity" in policies
        return lapsed or self.marks.hashing != after.marks.hashing

    def commit(self) -> None:
        """Show the certificates of this configuration from now on, to be called once in every
        process that takes it over. Not for the first one."""
        if self.tls is not None and self.tls_staged is not None:
            self.tls.commit(self.tls_staged)

    def tls_warnings(self) -> list[str]:
        """What of its certificates and ticket keys needs care."""
        return [] if self.tls is None else self.tls.warnings(self.tls_staged)


def _usage_mark(config: Config) -> Hashable:
    usage = config.usage
    if usage is None or usage.redis_stream is None:
        return identity(usage)
    return identity((usage, config.limits_redis))


def prepare(
    config: Config, shared: Shared | None = None, previous: Prepared | None = None
) -> Prepared:
    """Build what workers forked from now on share. Binds nothing and starts nothing.

    `previous`: what was prepared before. What has not changed is taken from there (tokenizers,
    templates and TLS contexts whose settings and files are the same), and so is `shared`, which
    without either is made. Raises ConfigError, in the words of `headrace check`, also when a
    static setting differs from `previous`; nothing is changed then. The caller puts the result in
    the place of `previous` once every worker has committed.
    """
    if previous is not None:
        shared = previous.shared
        if faults := static_changes(previous.config, config):
            raise ConfigError("\n".join(faults))
    if shared is None:
        shared = Shared.make(config.workers, host=HostMemory.make(config))
    places = room_for(config.likely_replicas, config.routing.tiers.slower)
    before = Places(places, {}) if previous is None else previous.places
    renewed = before.renewed(config.replicas)
    # Before the files are read: see `identity`.
    marks = Marks.of(config)
    tls, tls_staged = _tls(config, shared, previous)
    with _at("$.models"):
        if previous is None:
            prompter = Prompter(config.models, config.routing, drawn=shared.secret)
        else:
            prompter = previous.prompter.renewed(config.models, config.routing)
    with _at("$.auth"):
        fetchers = _fetchers(config, marks, previous)
        api_keys = _api_keys(config)
    with _at("$.replicas"):
        upstream_tls = _upstream_tls(config, marks, previous)
        Pool(config.replicas, config.upstream, Metrics.private(), time.monotonic, upstream_tls)
    with _at("$.limits"):
        Limiter(config.named_limits or LimitsConfig(), Metrics.private())
    with _at("$.routing.secret"):
        secret = config.routing.secret
        cache_secret = secret.reveal_strong() if secret is not None else ""
    return Prepared(
        config=config,
        generation=1 if previous is None else previous.generation + 1,
        shared=shared,
        marks=marks,
        tls=tls,
        tls_staged=tls_staged,
        upstream_tls=upstream_tls,
        fetchers=fetchers,
        api_keys=api_keys,
        prompter=prompter,
        cache_secret=cache_secret,
        places=renewed,
    )


def _tls(
    config: Config, shared: Shared, previous: Prepared | None
) -> tuple[ServerTls | None, StagedTls | None]:
    settings = config.listen.tls
    if settings == "off":
        return None, None
    alpn = HTTP1_ALPN if config.listen.http2_engine == "off" else ALPN
    if previous is not None and previous.tls is not None:
        return previous.tls, previous.tls.stage(settings, alpn)
    return ServerTls(settings, time.time, alpn, secret=shared.secret), None


def _fetchers(config: Config, marks: Marks, previous: Prepared | None) -> dict[str, Fetcher]:
    """By issuer. Each loads the authorities that it trusts, which takes time."""
    before = {} if previous is None else previous.fetchers
    known = {} if previous is None else previous.marks.key_sets
    made = {}
    for issuer in () if config.auth == "none" else config.auth.issuers:
        name = issuer.issuer
        same = name in before and known[name] == marks.key_sets[name]
        made[name] = before[name] if same else fetcher_for(issuer)
    return made


def _follows(config: Config) -> bool:
    """Whether who may come is told by the limits' Redis, too."""
    return config.auth != "none" and config.auth.revocations.redis


def _api_keys(config: Config) -> KeyRing:
    if config.auth == "none":
        return KeyRing()
    read_file(config.auth.revocations.file)
    ring = KeyRing.load(config.auth.api_keys)
    rules = [rule.name for rule in config.limits.rules] if config.limits is not None else []
    for key, rule in ring.quotas():
        if rule not in rules:
            raise ConfigError(
                f"the API key `{key}` has figures for the limit `{rule}`, and no rule has that name"
            )
    return ring


def _upstream_tls(
    config: Config, marks: Marks, previous: Prepared | None
) -> dict[str, ssl.SSLContext]:
    """By replica. A context remembers the sessions to resume."""
    known = {} if previous is None else previous.marks.replica_tls
    kept = {name: mark for name, mark in marks.replica_tls.items() if known.get(name) == mark}
    contexts = build_contexts([r for r in config.replicas if r.replica.id not in kept])
    for name, context in ({} if previous is None else previous.upstream_tls).items():
        if name in kept:
            contexts[name] = context
    return contexts


@contextmanager
def _at(path: str) -> Iterator[None]:
    """Say which section a fault belongs to, where the fault does not say so itself."""
    try:
        yield
    except ConfigError as error:
        lines = str(error).splitlines()
        raise ConfigError(
            "\n".join(line if line.startswith("$") else f"{path}: {line}" for line in lines)
        ) from error
