from __future__ import annotations

import logging

import pytest

from backend.circuit_meters import CircuitMeter, CircuitMeters
from backend.config import HealthConfig, ReplicaConfig
from backend.dial import REFUSED
from backend.health import Circuit, ModelHealth, Probe
from backend.member import Hooks, Member, server_of
from core.errors import BadRequest, UpstreamError, UpstreamUnreachable
from core.metrics import Metrics
from core.replica import Load

CONFIG = ReplicaConfig(url="http://gpu:8000", model="m", id="r")
REFUSAL = UpstreamUnreachable("no", code=REFUSED)


class Bench:
    def __init__(self) -> None:
        self.now = 100.0
        self.reads = 0
        self.refused: list[str] = []
        self.metrics = Metrics.private()
        hooks = Hooks(activity=lambda _: self.reads, on_refused=self.refused.append)
        self.member = Member(CONFIG, HealthConfig(), hooks, lambda: self.now)

    @property
    def meter(self) -> CircuitMeter:
        return CircuitMeters(self.metrics).of("r")

    def join(self, config: ReplicaConfig = CONFIG) -> None:
        self.member.join(config.replica, HealthConfig(), self.meter)

    def shown(self) -> float:
        return self.metrics.value("headrace_replica_healthy", "r")


def test_before_it_joins_nobody_hears_of_it() -> None:
    bench = Bench()
    bench.reads = 7  # of another server with its id
    assert not bench.member.probed_once
    bench.member.probed(Probe.REFUSED)
    assert bench.member.probed_once
    assert bench.refused == []
    assert bench.member.health.circuit is Circuit.OPEN
    bench.join()
    assert bench.shown() == 0.0
    bench.member.failed(REFUSAL)
    assert bench.refused == ["r"]


def test_it_joins_again_with_other_settings_as_it_is() -> None:
    bench = Bench()
    bench.join()
    assert bench.shown() == 1.0
    bench.member.failed(REFUSAL)
    load = Load(1.0, 2.0, 0.5, bench.now)
    bench.member.scraped(load)
    bench.join(ReplicaConfig(url="http://gpu:8000", model="m", id="r", weight=2.0))
    assert (bench.shown(), bench.member.load) == (0.0, load)
    assert bench.member.health.replica.weight == 2.0
    bench.now += 60.0
    bench.member.succeeded()
    assert bench.shown() == 1.0


def test_after_it_left_it_changes_nothing_that_is_shown() -> None:
    bench = Bench()
    bench.join()
    bench.member.leave()
    bench.member.failed(REFUSAL)
    bench.member.probed(Probe.REFUSED)
    assert (bench.shown(), bench.refused) == (1.0, [])


def test_its_model_is_reviewed_and_each_change_is_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench()
    bench.join()
    model = bench.member.model = ModelHealth([bench.member.health], HealthConfig())
    bench.member.failed(BadRequest("the client's own fault"))
    assert not model.troubled
    for _ in range(3):
        bench.member.failed(REFUSAL)
    assert model.troubled
    assert len(caplog.records) == 1
    bench.now += 60.0
    bench.member.probed(Probe.GOOD)
    assert not model.troubled
    assert len(caplog.records) == 2


def test_an_id_can_be_taken_over() -> None:
    moved = ReplicaConfig(url="http://other:8000", model="m", id="r")
    serves_other = ReplicaConfig(url="http://gpu:8000", model="n", id="r")
    heavier = ReplicaConfig(url="http://gpu:8000", model="m", id="r", weight=3.0)
    assert server_of(heavier) == server_of(CONFIG)
    assert server_of(CONFIG) not in (server_of(moved), server_of(serves_other))


def test_a_replica_that_often_fails_is_shown_as_open_and_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.join()
    for _ in range(4):
        bench.member.succeeded()
        bench.member.failed(UpstreamError("It answered with an error."))
        bench.member.failed(UpstreamError("It answered with an error."))
    circuit, opened = "headrace_replica_circuit", "headrace_replica_circuit_opened_total"
    assert bench.metrics.value(circuit, "r", "open") == 1
    assert bench.metrics.value(circuit, "r", "closed") == 0
    assert bench.metrics.value(opened, "r", "ratio") == 1
    assert "in too many of the latest exchanges" in caplog.text
    bench.now += 2.0
    assert bench.member.health.admits(bench.now)
    bench.member.probed(Probe.GOOD)
    assert bench.metrics.value(circuit, "r", "half-open") == 1
    bench.member.failed(UpstreamError("It answered with an error."))
    assert bench.metrics.value(opened, "r", "trial") == 1
