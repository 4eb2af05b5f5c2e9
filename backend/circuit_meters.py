"""Metrics of the replicas' circuits. Pure: counting is a store into memory."""

from __future__ import annotations

from backend.health import Cause, Circuit
from core.metrics import Counter, Gauge, Metrics

OPENED_BY = [cause for cause in Cause if cause is not Cause.UNPROVEN]
"""An unproven replica's circuit was never closed."""


class CircuitMeters:
    """Of all replicas; `of` is called once for each, `remove` when it has left."""

    def __init__(self, metrics: Metrics) -> None:
        self._healthy = metrics.gauge(
            "headrace_replica_healthy", "1 while the replica's circuit is closed.", ("replica",)
        )
        self._states = metrics.gauge(
            "headrace_replica_circuit",
            "Workers in which the replica's circuit is closed, half-open or open.",
            ("replica", "state"),
        )
        self._opened = metrics.counter(
            "headrace_replica_circuit_opened_total",
            "Times that a replica's circuit opened, by what opened it.",
            ("replica", "cause"),
        )

    def __repr__(self) -> str:
        return "<CircuitMeters>"

    def of(self, replica_id: str) -> CircuitMeter:
        return CircuitMeter(
            self._healthy.labels(replica_id),
            {state: self._states.labels(replica_id, state.value) for state in Circuit},
            {cause: self._opened.labels(replica_id, cause.value) for cause in OPENED_BY},
        )

    def remove(self, replica_id: str) -> None:
        self._healthy.remove(replica_id)
        for state in Circuit:
            self._states.remove(replica_id, state.value)
        for cause in OPENED_BY:
            self._opened.remove(replica_id, cause.value)


class CircuitMeter:
    """Of one replica."""

    __slots__ = ("_healthy", "_opened", "_states")

    def __init__(
        self, healthy: Gauge, states: dict[Circuit, Gauge], opened: dict[Cause, Counter]
    ) -> None:
        self._healthy = healthy
        self._states = states
        self._opened = opened

    def __repr__(self) -> str:
        return "<CircuitMeter>"

    def show(self, circuit: Circuit) -> None:
        self._healthy.set(1.0 if circuit is Circuit.CLOSED else 0.0)
        for state, gauge in self._states.items():
            gauge.set(1.0 if state is circuit else 0.0)

    def opened(self, cause: Cause) -> None:
        self._opened[cause].inc()
