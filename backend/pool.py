"""Connections to the replicas: kept warm, reused, counted."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any

from backend.config import ReplicaConfig, UpstreamConfig
from backend.target import RESULTS, Counts, Hold, Progress, Target, access_of
from backend.upstream_tls import build_contexts
from core.clock import Clock
from core.errors import ConfigError
from core.metrics import Metrics
from core.tasks import spawn

TICK_S = 1.0


class _Meters:
    """What is counted of each replica's connections."""

    def __init__(self, metrics: Metrics) -> None:
        self.connects = metrics.counter(
            "headrace_upstream_connects_total",
            "Connections opened to a replica, by result.",
            ("replica", "result"),
        )
        self._connections = metrics.gauge(
            "headrace_upstream_connections",
            "Open connections to a replica, by state.",
            ("replica", "state"),
        )
        self._streams = metrics.gauge(
            "headrace_upstream_streams", "Open HTTP/2 streams to a replica.", ("replica",)
        )

    def __repr__(self) -> str:
        return f"<_Meters {self._connections}>"

    def publish(self, replica_id: str, counts: Iterable[Counts]) -> None:
        idle, busy, streams = map(sum, zip(*counts, strict=True))
        self._connections.labels(replica_id, "idle").set(idle)
        self._connections.labels(replica_id, "busy").set(busy)
        self._streams.labels(replica_id).set(streams)

    def remove(self, replica_id: str) -> None:
        for state in ("idle", "busy"):
            self._connections.remove(replica_id, state)
        self._streams.remove(replica_id)
        for result in RESULTS:
            self.connects.remove(replica_id, result)


class Pool:
    """All connections of this process. `start` keeps the warm ones, `close` ends everything.

    A changed configuration is taken over in two steps, `stage` and `commit`. Connections of a
    replica that is reached as before go on; those of another one are closed once they are idle.
    """

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
        self._meters = _Meters(metrics)
        self._grace_s = config.health.refused_grace_s
        self._targets: dict[str, Target] = {}
        self._retired: list[Target] = []
        self._task: asyncio.Task[None] | None = None
        self._timers: dict[Target, asyncio.TimerHandle] = {}
        self.commit(self.stage(replicas, config, contexts), config)

    def __repr__(self) -> str:
        return f"<Pool {list(self._targets.values())}>"

    async def start(self) -> None:
        """Open the warm connections in the background and keep them."""
        if self._task is None:
            self._task = spawn(self._maintain(), "pool")

    async def close(self) -> None:
        """Close idle connections now; one in use is closed when its response ends."""
        for target in (*self._targets.values(), *self._retired):
            target.close()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    def connect(self, replica_id: str, fresh: bool = False) -> Coroutine[Any, Any, Hold]:
        """A connection, or a place on one, for one exchange; `fresh`: not one that served before.

        Raises UpstreamUnreachable, UpstreamTimeout or UpstreamProtocolError. A cancelled call
        leaves nothing open that is not of use to others.
        """
        return self._targets[replica_id].connect(fresh)

    def stage(
        self,
        replicas: Sequence[ReplicaConfig],
        config: UpstreamConfig,
        contexts: Mapping[str, ssl.SSLContext] | None = None,
    ) -> dict[str, Target]:
        """What `commit` needs; nothing is opened yet. Raises ConfigError."""
        if contexts is None:
            contexts = build_contexts(replicas)
        targets: dict[str, Target] = {}
        for replica in replicas:
            replica_id = replica.replica.id
            if replica_id in targets:
                raise ConfigError(f"two replicas have the id {replica_id}; give them an `id` each")
            old = self._targets.get(replica_id)
            if old is not None and old.access == access_of(replica, config):
                targets[replica_id] = old
            else:
                context = contexts.get(replica_id)
                targets[replica_id] = Target(
                    replica, config, self._meters.connects, self._clock, context
                )
        return targets

    def commit(self, targets: Mapping[str, Target], config: UpstreamConfig) -> None:
        """Connect to these from now on."""
        self._grace_s = config.health.refused_grace_s
        for replica_id, old in self._targets.items():
            if targets.get(replica_id) is not old:
                old.retire()
                self._retired.append(old)
        self._targets = dict(targets)

    @property
    def targets(self) -> Mapping[str, Target]:
        """Those in use, by id."""
        return self._targets

    def open_connections(self) -> int:
        """Sockets that are open or being opened (a leak counter)."""
        return sum(target.count() for target in (*self._targets.values(), *self._retired))

    def activity(self, replica_id: str) -> int:
        """A number that grows while bytes of responses arrive from the replica."""
        return self._targets[replica_id].reads

    def refused(self, replica_id: str) -> None:
        """The replica refuses connections: fail its streams that stay silent for the grace time.

        A stopped vLLM may leave open streams without a byte or a FIN; a server that drains
        refuses too, but its streams flow.
        """
        self._targets[replica_id].close_idle()
        for target in self._of(replica_id):
            if target.busy and target not in self._timers:
                self._timers[target] = asyncio.get_running_loop().call_later(
                    self._grace_s, self._fail_silent, target, target.progress_of_each()
                )

    def _fail_silent(self, target: Target, before: Progress) -> None:
        del self._timers[target]
        target.fail_silent(before)

    async def _maintain(self) -> None:
        while True:
            self._tick(self._clock())
            await asyncio.sleep(TICK_S)

    def _tick(self, now: float) -> None:
        for target in (*self._targets.values(), *self._retired):
            target.tick(now)
        for target in [target for target in self._retired if target.done]:
            self._retired.remove(target)
            if not self._of(target.id):
                self._meters.remove(target.id)
        for replica_id in {target.id for target in (*self._targets.values(), *self._retired)}:
            self._meters.publish(replica_id, [t.counts() for t in self._of(replica_id)])

    def _of(self, replica_id: str) -> list[Target]:
        """The target in use, and those before it that are not done."""
        current = self._targets.get(replica_id)
        found = [target for target in self._retired if target.id == replica_id]
        return found if current is None else [current, *found]
