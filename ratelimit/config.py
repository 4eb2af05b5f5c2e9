"""The section `limits`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from core.section import Contradictions, FilePath, Secret, Section
from ratelimit.endpoint import parse, parse_host

Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
"""A number of requests, tokens, streams or cost units (see `bucket.MAX_TOKENS`)."""
Price = Annotated[float, Meta(ge=0, le=1_000_000)]

Dimension = Literal["organisation", "tenant", "user", "key", "model", "address"]
Unit = Literal[
    "requests", "input_tokens", "output_tokens", "total_tokens", "cost_units", "concurrent"
]
Window = Literal["second", "minute", "hour", "day"]
StoreFailure = Literal["local", "open", "closed"]

WINDOW_S: Final[dict[Window, int]] = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}
OF_A_CALLER: Final = frozenset({"organisation", "tenant", "user", "key"})
MAX_BURST_S: Final = 604_800
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")


class RedisConfig(Section):
    """Redis or Valkey: one server, a pair that Sentinels watch, or a cluster.

    `url`: redis://host:6379/0, rediss://host:6380/0 or unix:///path?db=0, with a user name if need
    be. `sentinels`: host:port of each; then the host of `url` is the name by which they know the
    server. `cluster`: `url` is one node, `nodes` (host:port) are others to begin with. `ca`:
    certificates to trust with rediss (default: the system's). `deadline_s` bounds what a call may
    add to a request. After `failures_to_open` failures in a row the server is left alone and tried
    again in the background, at the latest every `retry_max_s`.
    """

    url: str
    password: Secret | None = None
    sentinels: tuple[str, ...] = ()
    sentinel_password: Secret | None = None
    cluster: bool = False
    nodes: tuple[str, ...] = ()
    ca: FilePath | None = None
    deadline_s: Annotated[float, Meta(gt=0, le=1)] = 0.02
    connect_timeout_s: Annotated[float, Meta(gt=0, le=2)] = 1.0
    failures_to_open: Annotated[int, Meta(ge=1, le=100)] = 3
    retry_max_s: Annotated[float, Meta(gt=0, le=3)] = 2.0
    key_prefix: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{1,64}$")] = "headrace"

    def __post_init__(self) -> None:
        endpoint = parse(self.url)
        faults = []
        if self.ca is not None and not endpoint.tls:
            faults.append((".ca", "needs a rediss:// url"))
        if self.sentinels and self.cluster:
            faults.append((".cluster", "a cluster has no Sentinels: give one of the two"))
        if endpoint.path and (self.sentinels or self.cluster):
            faults.append((".url", "a Unix socket is one server: leave out sentinels and cluster"))
        if self.cluster and endpoint.db:
            faults.append((".url", "a cluster has no other database than 0"))
        if self.nodes and not self.cluster:
            faults.append((".nodes", "means nothing without `cluster: true`"))
        if self.sentinel_password is not None and not self.sentinels:
            faults.append((".sentinel_password", "means nothing without `sentinels`"))
        for name in ("sentinels", "nodes"):
            faults += _hosts(name, getattr(self, name))
        if faults:
            raise Contradictions(faults)


def _hosts(name: str, values: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for index, text in enumerate(values):
        try:
            parse_host(text)
        except ValueError as error:
            yield f".{name}[{index}]", str(error)


class RedisStoreConfig(Section):
    redis: RedisConfig


class Match(Section):
    """Which requests a rule concerns; empty: all. `routes` are paths: /v1/chat/completions."""

    tenants: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()


class Rule(Section):
    """One limit: `limit` of a `unit` per `window`, for each combination of the values of `per`.

    `burst` is the size of the bucket, by default one window's worth. Of `concurrent` streams
    `limit` may run at once, and there is neither window nor burst. Users and keys are told apart
    inside their tenant; a tenant without an organisation is one by itself. `per: []` is one bucket
    for everybody. `on_store_failure`: `local` counts in this process alone, `open` lets everything
    pass, `closed` answers 503. `shadow`: count and tell, refuse nothing.
    """

    name: str
    limit: Count
    unit: Unit = "requests"
    window: Window = "minute"
    burst: Count | None = None
    per: tuple[Dimension, ...] = ("tenant",)
    match: Match = Match()
    on_store_failure: StoreFailure = "local"
    shadow: bool = False

    def __post_init__(self) -> None:
        faults = []
        if not _NAME.match(self.name):
            faults.append((".name", "expected 1 to 64 letters, digits, `_`, `.` or `-`"))
        if len(set(self.per)) != len(self.per):
            faults.append((".per", "names something twice"))
        if self.burst is not None:
            if self.unit == "concurrent":
                faults.append((".burst", "means nothing for concurrent streams"))
            elif self.burst * WINDOW_S[self.window] > self.limit * MAX_BURST_S:
                faults.append((".burst", "expected at most what flows in within a week"))
        if faults:
            raise Contradictions(faults)

    @property
    def is_common(self) -> bool:
        """Whether callers of different organisations or tenants share its buckets."""
        return OF_A_CALLER.isdisjoint(self.per)


class PriceConfig(Section):
    """Cost units per 1,000 tokens, to three decimals. `cached`: of the prompt, what the replica
    reports as cached (default: as `input`)."""

    input: Price
    output: Price
    cached: Price | None = None

    def __post_init__(self) -> None:
        for name in ("input", "output", "cached"):
            price = getattr(self, name)
            if price is not None and abs(price * 1000 - round(price * 1000)) > 1e-6:
                raise Contradictions([(f".{name}", "expected at most three decimals")])


class LimitsConfig(Section):
    """How much callers may use.

    A request is charged its prompt and an estimate of its output before it runs, more as its
    output passes the estimate, and what it really used when it ends. The estimate is what answers
    of the model have had on average, at most `output_reserve_cap_tokens` and what the request
    allows itself; `output_estimate_tokens` until answers have been seen. `lease_s`: what a gateway
    that dies had reserved is given back after this time at the latest.
    """

    store: Literal["memory"] | RedisStoreConfig = "memory"
    rules: tuple[Rule, ...] = ()
    prices: dict[str, PriceConfig] = msgspec.field(default_factory=dict)
    lease_s: Annotated[float, Meta(ge=1, le=3600)] = 30.0
    output_estimate_tokens: Annotated[int, Meta(ge=1, le=1_000_000)] = 512
    output_reserve_cap_tokens: Annotated[int, Meta(ge=1, le=1_000_000)] = 4096

    def __post_init__(self) -> None:
        names = [rule.name for rule in self.rules]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two rules have the same name: {', '.join(twice)}")
        faults = []
        for index, rule in enumerate(self.rules):
            if rule.unit == "cost_units" and not self.prices:
                faults.append((f".rules[{index}].unit", "cost_units need `limits.prices`"))
            if rule.is_common and self.is_cluster:
                faults.append(
                    (
                        f".rules[{index}].per",
                        "in a cluster the buckets of a request lie together by its organisation or "
                        "tenant, so one of organisation, tenant, user, key must be among them",
                    )
                )
        if faults:
            raise Contradictions(faults)

    @property
    def is_cluster(self) -> bool:
        return isinstance(self.store, RedisStoreConfig) and self.store.redis.cluster
