"""Connections to the replicas: kept warm, reused, counted."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence

from backend.config import ReplicaConfig, UpstreamConfig
from backend.target import Hold, Reads, Target
from backend.upstream_tls import build_contexts
from core.clock import Clock
from core.errors import ConfigError
from core.metrics import Metrics
from core.tasks import spawn

TICK_S = 1.0


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
        self._targets: dict[str, Target] = {}
        self._task: asyncio.Task[None] | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        if contexts is None:
            contexts = build_contexts(replicas)
        for replica in replicas:
            replica_id = replica.replica.id
            if replica_id in self._targets:
                raise ConfigError(f"two replicas have the id {replica_id}; give them an `id` each")
            self._targets[replica_id] = Target(
                replica, config, metrics, clock, contexts.get(replica_id)
            )

    def __repr__(self) -> str:
        return f"<Pool {list(self._targets.values())}>"

    async def start(self) -> None:
        """Open the warm connections in the background and keep them."""
        if self._task is None:
            self._task = spawn(self._maintain(), "pool")

    async def close(self) -> None:
        """Close idle connections now; one in use is closed when its response ends."""
        for target in self._targets.values():
            target.close()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def connect(self, replica_id: str, fresh: bool = False) -> Hold:
        """A connection, or a place on one, for one exchange; `fresh`: not one that served before.

        Raises UpstreamUnreachable, UpstreamTimeout or UpstreamProtocolError. A cancelled call
        leaves nothing open that is not of use to others.
        """
        return await self._targets[replica_id].connect(fresh)

    def open_connections(self) -> int:
        """Sockets that are open or being opened (a leak counter)."""
        return sum(target.count() for target in self._targets.values())

    def activity(self, replica_id: str) -> int:
        """A number that grows while bytes of responses arrive from the replica."""
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
        self._timers[replica_id] = asyncio.get_running_loop().call_later(
            self._grace_s, self._fail_silent, target, target.reads_of_each()
        )

    def _fail_silent(self, target: Target, before: Reads) -> None:
        del self._timers[target.id]
        target.fail_silent(before)

    async def _maintain(self) -> None:
        while True:
            now = self._clock()
            for target in self._targets.values():
                target.tick(now)
            await asyncio.sleep(TICK_S)
