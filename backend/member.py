"""One replica as the registry knows it: its circuit, its load, and what both tell others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable

from backend.circuit_meters import CircuitMeter
from backend.config import HealthConfig, ReplicaConfig
from backend.dial import REFUSED
from backend.health import Cause, Circuit, Fault, ModelHealth, Probe, ReplicaHealth, classify
from core.clock import Clock
from core.errors import GatewayError
from core.replica import Load, Replica

_log = logging.getLogger("headrace.backend")


class Hooks:
    """What members ask and tell: `activity` (`Pool.activity`) tells flowing streams from a silent
    replica, `on_refused` hears of every connection that a replica refused, `on_doubt` when
    exchanges have opened its circuit. Each may be None."""

    __slots__ = ("activity", "on_doubt", "on_refused")

    def __init__(
        self,
        activity: Callable[[str], int] | None = None,
        on_refused: Callable[[str], None] | None = None,
    ) -> None:
        self.activity = activity
        self.on_refused = on_refused
        self.on_doubt: Callable[[str], None] | None = None

    def __repr__(self) -> str:
        return f"<Hooks {self.activity} {self.on_refused}>"


class Member:
    """`server` tells one model server from another that takes over its id. `present`: it is among
    the replicas that get requests; until then nobody else hears of it. `model` is set then."""

    __slots__ = (
        "_clock",
        "_hooks",
        "_meter",
        "_reads",
        "health",
        "load",
        "model",
        "present",
        "probed_once",
        "server",
    )

    def __init__(
        self, config: ReplicaConfig, health: HealthConfig, hooks: Hooks, clock: Clock
    ) -> None:
        self.server = server_of(config)
        self.health = ReplicaHealth(config.replica, health)
        self.load: Load | None = None
        self.model: ModelHealth | None = None
        self.present = False
        self.probed_once = False
        self._hooks = hooks
        self._meter: CircuitMeter | None = None
        self._reads = 0
        self._clock = clock

    def __repr__(self) -> str:
        return f"<Member {self.health}>"

    @property
    def id(self) -> str:
        return self.health.replica.id

    def join(self, replica: Replica, health: HealthConfig, meter: CircuitMeter) -> None:
        """It is one of those that get requests, or still is, with these settings."""
        self.health.use(replica, health)
        self.present = True
        self._meter = meter
        self._publish()

    def await_proof(self) -> None:
        """To be called before it joins others that get requests already."""
        if not self.health.seen and self.health.circuit is Circuit.CLOSED:
            self.health.await_proof(self._clock())

    def leave(self) -> None:
        """It gets no more requests; whatever is still heard of it concerns nobody."""
        self.present = False
        self._meter = None

    def succeeded(self) -> None:
        """An exchange with it worked."""
        before = self.health.circuit
        self.health.succeeded(self._clock())
        if before is not Circuit.CLOSED:
            self._changed(before, "an exchange succeeded")

    def failed(self, error: GatewayError) -> None:
        """An exchange with it failed; an error that is not the replica's counts for nothing."""
        fault = classify(error, REFUSED)
        if fault is None:
            return
        before = self.health.circuit
        self.health.failed(fault, self._clock())
        # Not the replica's own words: they may quote a prompt.
        cause = f": {error.__cause__}" if error.__cause__ is not None else ""
        share = " in too many of the latest exchanges" if self._by_ratio else ""
        self._changed(before, f"{error.reason}{cause}{share}")
        if before is Circuit.CLOSED and self.health.circuit is Circuit.OPEN:
            self._doubt()
        if fault is Fault.REFUSED:
            self._refused()

    def probed(self, probe: Probe) -> float:
        """A probe ended. Returns the seconds until the next one."""
        self.probed_once = True
        activity = self._hooks.activity
        reads = activity(self.id) if self.present and activity is not None else 0
        flowing = reads != self._reads
        self._reads = reads
        before = self.health.circuit
        now = self._clock()
        self.health.probed(probe, now, flowing)
        self._changed(before, f"its health is {probe.value}")
        self._publish()  # an open circuit has perhaps become half-open with a request
        if probe is Probe.REFUSED:
            self._refused()
        return self.health.due(now)

    def scraped(self, load: Load) -> None:
        """Its /metrics were read."""
        self.load = load

    @property
    def _by_ratio(self) -> bool:
        return self.health.circuit is Circuit.OPEN and self.health.cause is Cause.RATIO

    def _doubt(self) -> None:
        if self.present and self._hooks.on_doubt is not None:
            self._hooks.on_doubt(self.id)

    def _refused(self) -> None:
        if self.present and self._hooks.on_refused is not None:
            self._hooks.on_refused(self.id)

    def _changed(self, before: Circuit, why: str) -> None:
        """Publish a change; one log line for each, none for a repetition."""
        circuit = self.health.circuit
        if circuit is before:
            return
        if circuit is Circuit.OPEN and self._meter is not None:
            self._meter.opened(self.health.cause)
        if self.model is not None:
            self.model.review()
        self._publish()
        level = logging.WARNING if circuit is Circuit.OPEN else logging.INFO
        _log.log(level, "replica %s: circuit %s, %s", self.id, circuit.value, why)

    def _publish(self) -> None:
        if self._meter is not None:
            self._meter.show(self.health.circuit)


def server_of(config: ReplicaConfig) -> Hashable:
    """Where it is and what it serves: the same id with another one of these is another replica."""
    return config.url, config.model, config.data_parallel_rank
