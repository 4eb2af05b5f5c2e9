from __future__ import annotations

import logging
from typing import Any

import pytest

from backend.config import HealthConfig, ReplicaConfig, ScrapeConfig, UpstreamConfig
from backend.dial import REFUSED
from backend.health import Probe
from backend.monitor import Monitor
from backend.registry import Registry
from core.errors import BadRequest, ConfigError, UpstreamProtocolError, UpstreamUnreachable
from core.metrics import Metrics
from core.replica import Load

REFUSAL = UpstreamUnreachable("no", code=REFUSED)


class Fleet:
    """A registry with a clock that stands until it is moved."""

    def __init__(self, *models: str, **options: Any) -> None:
        self.now = 100.0
        self.metrics = Metrics.private()
        self.refused: list[str] = []
        self.flow = 0
        replicas = [
            ReplicaConfig(url=f"http://gpu-{n}:8000", model=model, id=f"r{n}")
            for n, model in enumerate(models)
        ]
        self.registry = Registry(
            replicas,
            UpstreamConfig(**options),
            self.metrics,
            lambda: self.now,
            activity=lambda _: self.flow,
            on_refused=self.refused.append,
        )

    def ids(self, model: str = "m") -> list[str]:
        return [replica.id for replica in self.registry.candidates(model)]

    def healthy(self, replica_id: str) -> float:
        return self.metrics.value("headrace_replica_healthy", replica_id)


def test_models_and_replicas() -> None:
    fleet = Fleet("m", "n", "m")
    assert fleet.registry.models() == ("m", "n")
    assert fleet.ids() == ["r0", "r2"]
    assert fleet.ids("unknown") == []
    assert fleet.registry.member("r1").health.replica.model == "n"


def test_doubled_id() -> None:
    same = [ReplicaConfig(url="http://gpu", model="m")] * 2
    with pytest.raises(ConfigError, match="gpu:80"):
        Registry(same, UpstreamConfig(), Metrics.private(), lambda: 0.0)


def test_ready_says_which_model_is_not() -> None:
    fleet = Fleet("m", "n", "n")
    assert "m" in (fleet.registry.ready() or "")
    fleet.registry.member("r0").probed(Probe.GOOD)
    assert "model n: no replica has answered yet" in (fleet.registry.ready() or "")
    fleet.registry.succeeded("r2")
    assert fleet.registry.ready() is None
    fleet.registry.failed("r0", REFUSAL)
    assert "model m: no usable replica" in (fleet.registry.ready() or "")


def test_ready_without_active_health() -> None:
    assert Fleet("m", active_health=False).registry.ready() is None


def test_refused_takes_out_at_once_and_tells() -> None:
    fleet = Fleet("m", "m")
    fleet.registry.failed("r0", REFUSAL)
    assert fleet.ids() == ["r1"]
    assert fleet.refused == ["r0"]
    assert (fleet.healthy("r0"), fleet.healthy("r1")) == (0, 1)
    fleet.registry.member("r0").probed(Probe.GOOD)
    assert fleet.ids() == ["r0", "r1"]
    assert fleet.healthy("r0") == 1


def test_a_refused_probe_tells_too() -> None:
    fleet = Fleet("m")
    fleet.registry.member("r0").probed(Probe.REFUSED)
    assert fleet.refused == ["r0"]
    assert fleet.ids() == []


def test_a_thousand_client_errors_change_nothing() -> None:
    fleet = Fleet("m", "m")
    for _ in range(1000):
        fleet.registry.failed("r0", BadRequest("x"))
    assert fleet.ids() == ["r0", "r1"]


def test_failures_open_and_a_trial_closes() -> None:
    fleet = Fleet("m", "m", health=HealthConfig(failures=3))
    for _ in range(3):
        fleet.registry.failed("r1", UpstreamProtocolError("x"))
    assert fleet.ids() == ["r0"]
    fleet.now += 1.0
    assert fleet.ids() == ["r0", "r1"]
    assert fleet.ids() == ["r0"], "one trial at a time"
    fleet.registry.succeeded("r1")
    assert fleet.ids() == ["r0", "r1"]


def test_slow_health_of_a_busy_replica() -> None:
    fleet = Fleet("m", "m")
    for _ in range(20):
        fleet.now += 10
        fleet.flow += 1
        fleet.registry.member("r0").probed(Probe.SLOW)
    assert fleet.ids() == ["r0", "r1"]
    for _ in range(3):
        fleet.now += 10
        fleet.registry.member("r0").probed(Probe.SLOW)
    assert fleet.ids() == ["r1"], "the streams are silent now"


def test_load_goes_stale() -> None:
    fleet = Fleet("m", metrics=ScrapeConfig(interval_s=2))
    assert fleet.registry.load("r0") is None
    load = Load(running=1, waiting=2, kv_use=0.5, observed_at=fleet.now)
    fleet.registry.member("r0").scraped(load)
    fleet.now += 6
    assert fleet.registry.load("r0") is load
    fleet.now += 0.1
    assert fleet.registry.load("r0") is None


def test_one_line_for_a_change(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet("m", "m")
    with caplog.at_level(logging.INFO, "headrace.backend"):
        for _ in range(50):
            fleet.registry.failed("r0", REFUSAL)
        fleet.registry.member("r0").probed(Probe.GOOD)
    assert [record.getMessage().split(",")[0] for record in caplog.records] == [
        "replica r0: circuit open",
        "replica r0: circuit closed",
    ]


def replicas(*ids: str, **fields: Any) -> list[ReplicaConfig]:
    """Of the model m; those of `Fleet` have such URLs too."""
    return [ReplicaConfig(url=f"http://gpu-{i[1:]}:8000", model="m", id=i, **fields) for i in ids]


def test_those_that_stay_keep_what_is_known_of_them() -> None:
    fleet = Fleet("m", "m")
    registry = fleet.registry
    registry.failed("r0", REFUSAL)
    kept = registry.member("r0")
    before = registry.candidates("m")
    roster = registry.stage(replicas("r0", "r2", weight=2.0), UpstreamConfig())
    assert registry.candidates("m") == before
    assert [replica.weight for replica in before] == [1.0]
    assert registry.commit(roster) == ["r1"]
    assert registry.member("r0") is kept
    assert fleet.ids() == ["r2"]
    assert {replica.weight for replica in registry.candidates("m")} == {2.0}
    assert (fleet.healthy("r0"), fleet.healthy("r2")) == (0.0, 1.0)
    shown = fleet.metrics.board.collect()["headrace_replica_healthy"].series
    assert sorted(shown) == [("r0",), ("r2",)]
    with pytest.raises(KeyError):
        registry.member("r1")


def test_another_server_under_an_id_is_a_new_one() -> None:
    fleet = Fleet("m")
    old = fleet.registry.member("r0")
    moved = [ReplicaConfig(url="http://elsewhere", model="m", id="r0")]
    assert fleet.registry.commit(fleet.registry.stage(moved, UpstreamConfig())) == ["r0"]
    assert fleet.registry.member("r0") is not old
    old.failed(REFUSAL)
    assert (fleet.refused, fleet.healthy("r0"), fleet.ids()) == ([], 1.0, ["r0"])


def test_settings_of_health_hold_for_those_that_stay() -> None:
    fleet = Fleet("m", "m")
    config = UpstreamConfig(health=HealthConfig(failures=1), metrics="off")
    assert fleet.registry.commit(fleet.registry.stage(replicas("r0", "r1"), config)) == []
    fleet.registry.failed("r0", UpstreamProtocolError("x"))
    assert fleet.ids() == ["r1"]


def test_a_roster_says_what_it_waits_for() -> None:
    fleet = Fleet("m")
    registry = fleet.registry
    roster = registry.stage(replicas("r0", "r1"), UpstreamConfig())
    assert roster.unasked() == ["r1"]
    assert registry.unready(roster) == "model m: no replica has answered yet"
    roster.entries["r1"].member.probed(Probe.GOOD)
    assert (roster.unasked(), registry.unready(roster)) == ([], None)
    assert registry.ready() == "model m: no replica has answered yet"
    assert registry.ready(["n"]) == "model n: it has no replica"
    registry.drop(roster)
    unprobed = registry.stage(replicas("r0", "r2"), UpstreamConfig(active_health=False))
    assert (unprobed.unasked(), registry.unready(unprobed)) == ([], None)


async def test_those_that_join_others_get_nothing_before_they_answer_a_probe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Monitor, "start", lambda self: None)
    config = UpstreamConfig(metrics="off")
    registry = Registry(replicas("r0"), config, Metrics.private(), lambda: 0.0)
    await registry.start()
    registry.commit(registry.stage(replicas("r0", "r1"), config))
    assert len(registry.candidates("m")) == 2, "nobody is proven to be better"
    registry.member("r0").probed(Probe.GOOD)
    roster = registry.stage(replicas("r0", "r1", "r2", "r3"), config)
    roster.entries["r2"].member.probed(Probe.GOOD)
    registry.commit(roster)
    assert [replica.id for replica in registry.candidates("m")] == ["r0", "r1", "r2"]
    registry.member("r3").probed(Probe.GOOD)
    assert len(registry.candidates("m")) == 4
    await registry.close()
