"""The sections `replicas` and `upstream` of the configuration. Times are seconds."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta

from backend.address import Address, parse_address
from backend.engines.dialect import Dialect, EngineKind
from backend.engines.known import DIALECTS
from core.http2.engines import EngineName
from core.replica import Replica, prefill_name
from core.section import Contradictions, FilePath, Secret, Section

Seconds = Annotated[float, Meta(gt=0)]
Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
Ratio = Annotated[float, Meta(ge=0, le=1)]
Wire = Literal["http1", "h2", "auto"]
Path = Annotated[str, Meta(pattern=r"^/[\x21-\x7e]*$")]


class ReplicaTlsConfig(Section):
    """How an https:// replica is verified, and with what we identify ourselves.

    `ca`: certificates to trust instead of the system's. `server_name`: the name that the
    certificate must have, when it is not the host of the URL. `certificate` and `key`: ours.
    """

    ca: FilePath | None = None
    verify: bool = True
    server_name: str | None = None
    certificate: FilePath | None = None
    key: FilePath | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key go together: one of them is missing")
        if not self.verify and self.ca is not None:
            raise ValueError("with verify: false nothing is checked against ca; drop one of them")


_ENDPOINT = re.compile(r"tcp://[\x21-\x7e]{1,240}:[0-9]{1,5}|ipc://[\x21-\x7e]{1,240}")


class KvEventsConfig(Section):
    """Where a replica publishes its KV events (ZeroMQ): `tcp://host:port` or `ipc://path`.

    `replay_endpoint`: where it answers for those that were missed. `topic`: only those that begin
    so. `bind`: the replica connects to us (as vLLM does to an endpoint without a wildcard).
    """

    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    bind: bool = False

    def __post_init__(self) -> None:
        faults = [
            (path, "expected `tcp://host:port` or `ipc:///path`")
            for path, value in (
                (".endpoint", self.endpoint),
                (".replay_endpoint", self.replay_endpoint),
            )
            if value is not None and not _ENDPOINT.fullmatch(value)
        ]
        if "*" in self.endpoint and not self.bind:
            faults.append((".endpoint", "only `bind: true` can have a wildcard; name the host"))
        if "*" in (self.replay_endpoint or ""):
            faults.append((".replay_endpoint", "it is the replica's; name its host"))
        if faults:
            raise Contradictions(faults)


class ReplicaTraits(Section, kw_only=True):
    """What replicas of one kind have in common.

    `engine`: which model server it is (`backend/engines`).
    `protocol`: `auto` is what the TLS handshake (ALPN) agrees on, HTTP/2 if the replica offers it,
    and HTTP/1.1 in the clear; `h2` in the clear is HTTP/2 without asking (prior knowledge).
    `kv_events`: how it tells what its prefix cache holds; `auto` asks its `/kv_event_sources`.
    `role`: replicas that `prefill` do that for those that answer, `decode` or `both`, which differ
    in nothing: one that must can always prefill.
    """

    model: str
    engine: EngineKind = "vllm"
    protocol: Wire = "auto"
    weight: Annotated[float, Meta(gt=0)] = 1.0
    max_in_flight: Positive | None = None
    kv_tokens: Positive | None = None
    api_key: Secret | None = None
    tls: ReplicaTlsConfig | None = None
    kv_events: Literal["auto", "off"] | KvEventsConfig = "auto"
    role: Literal["both", "prefill", "decode"] = "both"

    @property
    def dialect(self) -> Dialect:
        return DIALECTS[self.engine]

    @property
    def kv_source(self) -> Literal["auto", "off"] | KvEventsConfig:
        """`kv_events`, as far as there is somebody to ask."""
        asked_in_vain = self.kv_events == "auto" and not self.dialect.tells_sources
        return "off" if asked_in_vain else self.kv_events


class ReplicaConfig(ReplicaTraits, kw_only=True):
    """One model server. `id` (default `host:port`) names it in logs and metrics.

    `data_parallel_rank`: which of the engines behind `url` this is; each of them is a replica with
    an `id` of its own. `drain`: it gets nothing new.
    """

    url: str
    id: Annotated[str, Meta(pattern=r"^[\x21-\x7e]{1,128}$")] | None = None
    data_parallel_rank: Count | None = None
    drain: bool = False

    def __post_init__(self) -> None:
        try:
            address = parse_address(self.url)
        except ValueError as error:
            raise Contradictions([(".url", str(error))]) from error
        if self.tls is not None and not address.tls:
            raise Contradictions([(".tls", "only a replica with an https:// url can have it")])

    @property
    def address(self) -> Address:
        return parse_address(self.url)

    @property
    def replica(self) -> Replica:
        """The identity that the rest of the gateway sees."""
        return Replica(
            id=self.id or self.address.name,
            model=prefill_name(self.model) if self.role == "prefill" else self.model,
            weight=self.weight,
            max_in_flight=self.max_in_flight,
            kv_tokens=self.kv_tokens,
        )


class TimeoutsConfig(Section):
    """One bound for each phase, so that a silent replica is noticed wherever it stops.

    `first_token_s` runs from the request to the first event of a stream, or `first_token_factor`
    times what was predicted if that is longer; `response_s` to the end of an answer that is not
    streamed, `idle_s` between two reads of a stream. After `heartbeat_s`
    the replica's comments alone are passed on, which ends the retries. `total_s` bounds the whole
    exchange: none by default, because a long stream that flows is healthy.
    """

    connect_s: Seconds = 2.0
    tls_s: Seconds = 5.0
    first_token_s: Seconds = 60.0
    first_token_factor: Annotated[float, Meta(ge=0, le=100)] = 5.0
    response_s: Seconds = 600.0
    idle_s: Seconds = 60.0
    heartbeat_s: Seconds = 15.0
    total_s: Seconds | None = None


class HeartbeatsConfig(Section):
    """Comments of the gateway's own while a replica is silent: what a client waits for in a stream
    is never longer than `interval_s`. With `before_head` also before the replica has begun: that is
    a 200, so what fails then is an event, and no other replica is tried."""

    interval_s: Annotated[float, Meta(ge=0.2)] = 15.0
    before_head: bool = False


class RetriesConfig(Section):
    """`max_tries` counts the first one. Retries are bounded by `budget_ratio` of the exchanges of
    the last 10 s plus `budget_floor`."""

    max_tries: Annotated[int, Meta(ge=1, le=5)] = 3
    budget_ratio: Ratio = 0.1
    budget_floor: Count = 10


class HedgeConfig(Section):
    """A second try, on another replica, beside one whose first token is late: after `after_s`, or
    after `after_p95_factor` times the 95th percentile of the model's latest first tokens, and never
    before it was predicted to come. Whoever answers first has won, the other one is cancelled. At
    most `budget_ratio` of the streams of the last 10 s, plus one."""

    after_s: Seconds | None = None
    after_p95_factor: Annotated[float, Meta(ge=1)] | None = None
    budget_ratio: Ratio = 0.05

    def __post_init__(self) -> None:
        if (self.after_s is None) == (self.after_p95_factor is None):
            raise ValueError("expected either after_s or after_p95_factor")


class PoolConfig(Section):
    """Connections kept for reuse, for each replica.

    `max_idle_s` must stay below the replica's keep-alive time (vLLM: 5 s). `warm` connections
    are kept open even when nothing is asked. An HTTP/2 connection that is silent for `ping_s` is
    asked by a PING, and given up when that is not answered for as long again.
    """

    max_idle_s: Seconds = 4.0
    max_idle: Count = 256
    warm: Count = 1
    ping_s: Annotated[float, Meta(ge=1)] = 5.0

    def __post_init__(self) -> None:
        if self.warm > self.max_idle:
            raise ValueError("warm is greater than max_idle, so it could never be reached")


class HealthConfig(Section):
    """When a replica gets no new requests.

    Active: `GET path` every `interval_s` (jittered); `unhealthy_after` bad answers in a row take
    the replica out, a good one brings it back. Passive: `failures` failed exchanges in a row, or
    `failure_ratio` of the last 20 (if 10 or more ended within 10 s), open its circuit for
    `backoff_s`, doubled up to `max_backoff_s`, never for more than `max_ejected_ratio` of a
    model's replicas. `refused_grace_s`: how long a stream of a replica
    that refuses connections may stay silent.
    """

    interval_s: Seconds = 2.0
    timeout_s: Seconds = 2.0
    path: Path = "/health"
    unhealthy_after: Positive = 2
    failures: Positive = 5
    failure_ratio: Annotated[float, Meta(gt=0, le=1)] = 0.5
    backoff_s: Seconds = 1.0
    max_backoff_s: Seconds = 30.0
    max_ejected_ratio: Ratio = 0.5
    refused_grace_s: Seconds = 2.0

    def __post_init__(self) -> None:
        if self.max_backoff_s < self.backoff_s:
            raise ValueError("max_backoff_s is less than backoff_s")


class ScrapeConfig(Section):
    """Reading the load from each replica's `GET path`, every `interval_s` (jittered)."""

    interval_s: Annotated[float, Meta(ge=0.5)] = 2.0
    timeout_s: Seconds = 2.0
    path: Path = "/metrics"


class UpstreamConfig(Section):
    """Everything about the replicas' side that is the same for all of them.

    `token_ids: auto`: a replica that is found to take the ids of a prompt's tokens gets them, and
    need not render and tokenize it once more.
    """

    timeouts: TimeoutsConfig = TimeoutsConfig()
    heartbeats: HeartbeatsConfig | None = None
    retries: RetriesConfig = RetriesConfig()
    hedge: HedgeConfig | None = None
    pool: PoolConfig = PoolConfig()
    health: HealthConfig = HealthConfig()
    http2_engine: EngineName = "nghttp2"
    active_health: bool = True
    metrics: ScrapeConfig | Literal["off"] = ScrapeConfig()
    token_ids: Literal["auto", "off"] = "off"

    def __post_init__(self) -> None:
        if self.hedge is not None and self.heartbeats is not None and self.heartbeats.before_head:
            raise Contradictions(
                [(".hedge", "a heartbeat before the head leaves no choice; drop one of them")]
            )
