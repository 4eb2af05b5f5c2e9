"""The replicas of this configuration: who they are, what they can take, whether they are well.

What a circuit decides is in `health`; here are the clock, the metrics and the background tasks.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Mapping, Sequence

from backend.config import ReplicaConfig, ScrapeConfig, UpstreamConfig
from backend.dial import REFUSED
from backend.health import Circuit, Fault, ModelHealth, Probe, ReplicaHealth, classify
from backend.monitor import Monitor
from backend.upstream_tls import build_contexts
from core.clock import Clock
from core.errors import ConfigError, GatewayError
from core.metrics import Gauge, Metrics
from core.replica import Load, Replica

STALE_SCRAPES = 3
"""A load is forgotten after so many scrape intervals."""

_log = logging.getLogger("headrace.backend")


class _Member:
    """Everything the registry knows about one replica."""

    __slots__ = ("gauge", "health", "load", "model", "reads")

    def __init__(self, health: ReplicaHealth, gauge: Gauge) -> None:
        self.health = health
        self.gauge = gauge
        self.load: Load | None = None
        self.reads = 0
        self.model: ModelHealth

    def __repr__(self) -> str:
        return f"<_Member {self.health}>"


class Registry:
    """A fleet: candidates and loads for the router, results from the pipeline.

    `on_refused` is called with the id of a replica whenever it refuses a connection, so that its
    silent streams can be failed (`Pool.refused`). `activity` (`Pool.activity`) tells flowing
    streams from a silent replica; without it only ended exchanges count. Both may be set later.
    """

    def __init__(
        self,
        replicas: Sequence[ReplicaConfig],
        config: UpstreamConfig,
        metrics: Metrics,
        clock: Clock,
        *,
        contexts: Mapping[str, ssl.SSLContext] | None = None,
        activity: Callable[[str], int] | None = None,
        on_refused: Callable[[str], None] | None = None,
    ) -> None:
        """`contexts`: as `build_contexts` made them. Raises ConfigError for doubled ids."""
        self.on_refused = on_refused
        self.activity = activity
        self._replicas = tuple(replicas)
        self._config = config
        self._clock = clock
        self._contexts = contexts
        self._members: dict[str, _Member] = {}
        self._models: dict[str, ModelHealth] = {}
        self._monitor: Monitor | None = None
        gauge = metrics.gauge(
            "headrace_replica_healthy", "1 while the replica's circuit is closed.", ("replica",)
        )
        for replica in (item.replica for item in replicas):
            if replica.id in self._members:
                raise ConfigError(f"two replicas have the id {replica.id}; give them an `id` each")
            member = _Member(ReplicaHealth(replica, config.health), gauge.labels(replica.id))
            member.gauge.set(1.0)
            self._members[replica.id] = member
        for name in dict.fromkeys(member.health.replica.model for member in self._members.values()):
            same = [m for m in self._members.values() if m.health.replica.model == name]
            model = ModelHealth((m.health for m in same), config.health)
            self._models[name] = model
            for member in same:
                member.model = model
        scrape = config.metrics
        interval_s = scrape.interval_s if isinstance(scrape, ScrapeConfig) else 0.0
        self._load_lives_s = STALE_SCRAPES * interval_s

    def __repr__(self) -> str:
        return f"<Registry {list(self._models.values())}>"

    # --- the router's side

    def candidates(self, model: str) -> Sequence[Replica]:
        """The replicas that may get a request now, in a stable order; none for unknown names."""
        health = self._models.get(model)
        if health is None:
            return ()
        return health.candidates(self._clock()) if health.troubled else health.everyone

    def load(self, replica_id: str) -> Load | None:
        """What it last reported, while that is fresh."""
        load = self._members[replica_id].load
        if load is None or self._clock() - load.observed_at > self._load_lives_s:
            return None
        return load

    def models(self) -> tuple[str, ...]:
        """Names of the models that have replicas, in configuration order."""
        return tuple(self._models)

    def replica(self, replica_id: str) -> Replica:
        """Raises KeyError for an unknown id."""
        return self._members[replica_id].health.replica

    # --- the life of the gateway

    async def start(self) -> None:
        """Start probing and scraping in the background; the first probes go out at once."""
        if self._monitor is not None:
            return
        contexts = self._contexts if self._contexts is not None else build_contexts(self._replicas)
        self._monitor = Monitor(self._replicas, self._config, self, contexts, self._clock)
        await self._monitor.start()

    async def close(self) -> None:
        if self._monitor is not None:
            await self._monitor.close()
            self._monitor = None

    def ready(self) -> str | None:
        """None, or which model has no usable replica. Before the first answer nothing is ready."""
        for name, model in self._models.items():
            if not model.usable():
                return f"model {name}: no usable replica, all {len(model.members)} are down"
            if self._config.active_health and not model.answered():
                return f"model {name}: no replica has answered yet"
        return None

    # --- results of exchanges

    def succeeded(self, replica_id: str) -> None:
        """An exchange with it worked (any answer below 500 that came whole, or is flowing)."""
        member = self._members[replica_id]
        before = member.health.circuit
        member.health.succeeded(self._clock())
        if before is not Circuit.CLOSED:
            self._changed(member, before, "an exchange succeeded")

    def failed(self, replica_id: str, error: GatewayError) -> None:
        """An exchange with it failed; an error that is not the replica's counts for nothing."""
        fault = classify(error, REFUSED)
        if fault is None:
            return
        member = self._members[replica_id]
        before = member.health.circuit
        member.health.failed(fault, self._clock())
        # Not the replica's own words: they may quote a prompt.
        cause = f": {error.__cause__}" if error.__cause__ is not None else ""
        self._changed(member, before, f"{error.reason}{cause}")
        if fault is Fault.REFUSED:
            self._refused(replica_id)

    # --- results of the monitor

    def probed(self, replica_id: str, probe: Probe) -> float:
        """A probe ended. Returns the seconds until the next one."""
        member = self._members[replica_id]
        reads = self.activity(replica_id) if self.activity is not None else 0
        flowing = reads != member.reads
        member.reads = reads
        before = member.health.circuit
        now = self._clock()
        member.health.probed(probe, now, flowing)
        self._changed(member, before, f"its health is {probe.value}")
        if probe is Probe.REFUSED:
            self._refused(replica_id)
        return member.health.due(now)

    def scraped(self, replica_id: str, load: Load) -> None:
        """Its /metrics were read."""
        self._members[replica_id].load = load

    def _refused(self, replica_id: str) -> None:
        if self.on_refused is not None:
            self.on_refused(replica_id)

    def _changed(self, member: _Member, before: Circuit, why: str) -> None:
        """Publish a change; one log line for each, none for a repetition."""
        circuit = member.health.circuit
        if circuit is before:
            return
        member.model.review()
        member.gauge.set(1.0 if circuit is Circuit.CLOSED else 0.0)
        level = logging.WARNING if circuit is Circuit.OPEN else logging.INFO
        _log.log(level, "replica %s: circuit %s, %s", member.health.replica.id, circuit.value, why)
