"""Connections to the replicas: kept warm, reused last-in first-out, counted.

A replica closes an idle connection after its keep-alive time (vLLM: 5 s), so one that is idle for
`max_idle_s` is never used again. The race that remains (closed by the replica while our request is
on its way) shows as `UpstreamReset(reused=True, answered=False)`; the answer is `connect(fresh=
True)`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator, Mapping, Sequence

from backend.config import ReplicaConfig, UpstreamConfig
from backend.dial import REFUSED, dial
from backend.http1_client import Connection
from backend.http1_protocol import Http1Protocol
from backend.request_head import RequestHead
from backend.upstream_tls import build_contexts
from core.clock import Clock
from core.errors import (
    ConfigError,
    GatewayError,
    UpstreamError,
    UpstreamReset,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from core.metrics import Counter, Metrics
from core.tasks import spawn

TICK_S = 1.0


class _Connects:
    """Counters of one replica's connects, by result."""

    __slots__ = ("cancelled", "failed", "ok", "refused", "timeout")

    def __init__(self, metrics: Metrics, replica_id: str) -> None:
        family = metrics.counter(
            "headrace_upstream_connects_total",
            "Connections opened to a replica, by result.",
            ("replica", "result"),
        )
        self.ok = family.labels(replica_id, "ok")
        self.refused = family.labels(replica_id, "refused")
        self.timeout = family.labels(replica_id, "timeout")
        self.failed = family.labels(replica_id, "failed")
        self.cancelled = family.labels(replica_id, "cancelled")

    def of(self, error: UpstreamError) -> Counter:
        if isinstance(error, UpstreamTimeout):
            return self.timeout
        return self.refused if error.reason == REFUSED else self.failed


class _Target:
    """One replica's sockets. It owns its `Http1Protocol`s: idle, busy or being opened.

    `reads_done` are the reads of ended exchanges; `failed_at` the instant of the last connect
    that failed.
    """

    def __init__(
        self, config: ReplicaConfig, upstream: UpstreamConfig, metrics: Metrics, clock: Clock
    ) -> None:
        self.id = config.replica.id
        self.address = config.address
        self.server_name = config.tls.server_name if config.tls else None
        self.context: ssl.SSLContext | None = None
        self.head = RequestHead(self.address.authority.encode(), _authorization(config))
        self.idle: dict[Http1Protocol, None] = {}
        self.busy: set[Http1Protocol] = set()
        self.opening = 0
        self.reads_done = 0
        self.failed_at = float("-inf")
        self.open = True
        self._pool = upstream.pool
        self._max_idle, self._max_idle_s = upstream.pool.max_idle, upstream.pool.max_idle_s
        self._timeouts = upstream.timeouts
        self._clock = clock
        self.connects = _Connects(metrics, self.id)
        gauge = metrics.gauge(
            "headrace_upstream_connections",
            "Open connections to a replica, by state.",
            ("replica", "state"),
        )
        self._idle_gauge = gauge.labels(self.id, "idle")
        self._busy_gauge = gauge.labels(self.id, "busy")

    def __repr__(self) -> str:
        return f"<_Target {self.id}: {len(self.idle)} idle, {len(self.busy)} busy>"

    def take(self) -> Http1Protocol | None:
        """The connection that was idle for the shortest time, if it is young enough."""
        while self.idle:
            protocol, _ = self.idle.popitem()
            if self._clock() - protocol.idle_at >= self._max_idle_s:
                # Last in, first out: all others are older still.
                protocol.abort()
                self.close_idle()
                return None
            if protocol.usable:
                return protocol
        return None

    async def open_one(self) -> Http1Protocol:
        """A new connection, in no set yet. Raises UpstreamUnreachable or UpstreamTimeout."""
        self.opening += 1
        try:
            protocol = await dial(
                self.address,
                self._timeouts,
                Http1Protocol(self, self.head),
                self.context,
                self.server_name,
            )
        except UpstreamError as error:
            self.failed_at = self._clock()
            self.connects.of(error).inc()
            raise
        except asyncio.CancelledError:
            self.connects.cancelled.inc()
            raise
        finally:
            self.opening -= 1
        self.connects.ok.inc()
        return protocol

    def released(self, protocol: Http1Protocol) -> None:
        self.busy.discard(protocol)
        self.reads_done += protocol.reads
        protocol.reads = 0
        # As `keep`, written out: there is one for each request.
        if self.open and len(self.idle) < self._max_idle:
            protocol.idle_at = self._clock()
            self.idle[protocol] = None
        else:
            protocol.abort()

    def keep(self, protocol: Http1Protocol) -> None:
        if self.open and len(self.idle) < self._max_idle:
            protocol.idle_at = self._clock()
            self.idle[protocol] = None
        else:
            protocol.abort()

    def lost(self, protocol: Http1Protocol) -> None:
        self.reads_done += protocol.reads
        protocol.reads = 0
        self.busy.discard(protocol)
        self.idle.pop(protocol, None)

    def close_idle(self) -> None:
        idle, self.idle = self.idle, {}
        for protocol in idle:
            protocol.abort()

    @property
    def reads(self) -> int:
        """Grows while any stream of the replica flows."""
        return self.reads_done + sum(protocol.reads for protocol in self.busy)

    def tick(self, now: float) -> None:
        """Close what was idle for too long, publish the counts."""
        for protocol in [p for p in self.idle if now - p.idle_at >= self._max_idle_s]:
            del self.idle[protocol]
            protocol.abort()
        self._idle_gauge.set(len(self.idle))
        self._busy_gauge.set(len(self.busy))

    def missing(self, now: float) -> int:
        """How many connections to open for `warm`; none soon after a failure."""
        if not self.open or now - self.failed_at < 5 * TICK_S:
            return 0
        return max(0, self._pool.warm - len(self.idle) - self.opening)


def _authorization(config: ReplicaConfig) -> bytes | None:
    if config.api_key is None:
        return None
    key = config.api_key.reveal()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError(f"the api_key of replica {config.replica.id} is not visible ASCII")
    return b"Bearer " + key.encode()


class Pool:
    """All connections of this process. `start` keeps the warm ones, `close` ends everything."""

    def __init__(
        self,
        replicas: Sequence[ReplicaConfig],
        config: UpstreamConfig,
        metrics: Metrics,
        clock: Clock,
        contexts: Mapping[str, ssl.SSLContext] | None = None,
    ) -> None:
        """`contexts`: as `build_contexts` made them before the fork. Raises ConfigError."""
        self._clock = clock
        self._grace_s = config.health.refused_grace_s
        self._targets: dict[str, _Target] = {}
        self._task: asyncio.Task[None] | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        if contexts is None:
            contexts = build_contexts(replicas)
        for replica in replicas:
            target = _Target(replica, config, metrics, clock)
            if target.id in self._targets:
                raise ConfigError(f"two replicas have the id {target.id}; give them an `id` each")
            target.context = contexts.get(target.id)
            if replica.address.tls and target.context is None:
                raise ConfigError(f"no TLS context was prepared for replica {target.id}")
            self._targets[target.id] = target

    def __repr__(self) -> str:
        return f"<Pool {list(self._targets.values())}>"

    async def start(self) -> None:
        """Open the warm connections in the background and keep them."""
        if self._task is None:
            self._task = spawn(self._maintain(), "pool")

    async def close(self) -> None:
        """Close idle connections now; one in use is closed when its response ends."""
        for target in self._targets.values():
            target.open = False
            target.close_idle()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def connect(self, replica_id: str, fresh: bool = False) -> Connection:
        """A connection for one exchange; `fresh`: not one that served before.

        Raises UpstreamUnreachable or UpstreamTimeout. A cancelled call leaves nothing open.
        """
        target = self._targets[replica_id]
        protocol = None if fresh else target.take()
        if protocol is None:
            if not target.open:
                raise UpstreamUnreachable("the gateway is closing its connections")
            protocol = await target.open_one()
        target.busy.add(protocol)
        return Connection(protocol, target.id)

    def open_connections(self) -> int:
        """Sockets that are open or being opened (a leak counter)."""
        return sum(len(t.idle) + len(t.busy) + t.opening for t in self._targets.values())

    def activity(self, replica_id: str) -> int:
        """A number that grows while bytes arrive from the replica."""
        return self._targets[replica_id].reads

    def refused(self, replica_id: str) -> None:
        """The replica refuses connections: fail its streams that stay silent for the grace time.

        A stopped vLLM may leave open streams without a byte or a FIN; a server that drains
        refuses too, but its streams flow.
        """
        target = self._targets[replica_id]
        target.close_idle()
        if replica_id in self._timers or not target.busy:
            return
        reads = {protocol: protocol.reads for protocol in target.busy}
        self._timers[replica_id] = asyncio.get_running_loop().call_later(
            self._grace_s, self._fail_silent, target, reads
        )

    def _fail_silent(self, target: _Target, reads: dict[Http1Protocol, int]) -> None:
        del self._timers[target.id]
        for protocol, before in reads.items():
            if protocol in target.busy and protocol.reads == before:
                error = UpstreamReset(
                    f"{target.id} refuses connections and the stream is silent",
                    reused=protocol.served > 0,
                    answered=before > 0,
                )
                protocol.fail(error)

    async def _maintain(self) -> None:
        warming: set[asyncio.Task[None]] = set()
        try:
            while True:
                now = self._clock()
                for target in self._targets.values():
                    target.tick(now)
                    for task in self._warm(target, now):
                        warming.add(task)
                        task.add_done_callback(warming.discard)
                await asyncio.sleep(TICK_S)
        finally:
            for task in list(warming):
                task.cancel()

    def _warm(self, target: _Target, now: float) -> Iterator[asyncio.Task[None]]:
        for _ in range(target.missing(now)):
            yield spawn(self._warm_one(target), "pool-warm")

    async def _warm_one(self, target: _Target) -> None:
        try:
            target.keep(await target.open_one())
        except GatewayError:
            return  # counted; whoever needs a connection will see it again
