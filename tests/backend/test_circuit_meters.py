from __future__ import annotations

from backend.circuit_meters import CircuitMeters
from backend.health import Cause, Circuit
from core.metrics import Metrics


def test_a_circuit_is_in_one_state_and_disappears_with_its_replica() -> None:
    metrics = Metrics.private()
    meters = CircuitMeters(metrics)
    meter = meters.of("r")
    for circuit in Circuit:
        meter.show(circuit)
        shown = [metrics.value("headrace_replica_circuit", "r", state.value) for state in Circuit]
        assert shown == [float(state is circuit) for state in Circuit]
        healthy = metrics.value("headrace_replica_healthy", "r")
        assert healthy == float(circuit is Circuit.CLOSED)
    meter.opened(Cause.RATIO)
    assert metrics.value("headrace_replica_circuit_opened_total", "r", "ratio") == 1
    meters.remove("r")
    shown = metrics.board.collect()
    assert not any(shown[name].series for name in shown if name.startswith("headrace_replica"))
