from __future__ import annotations

from typing import Any

import pytest

from backend.config import ReplicaConfig, ScrapeConfig, UpstreamConfig
from core.loading import ConfigProblems, convert


def replica(**values: Any) -> ReplicaConfig:
    return convert({"url": "http://gpu:8000", "model": "m", **values}, ReplicaConfig, "/base")


def upstream(values: dict[str, Any]) -> UpstreamConfig:
    return convert(values, UpstreamConfig, "/base")


def test_defaults() -> None:
    config = upstream({})
    assert (config.timeouts.connect_s, config.timeouts.tls_s) == (2, 5)
    assert (config.retries.max_tries, config.retries.budget_ratio) == (3, 0.1)
    assert config.pool.max_idle_s < 5, "vLLM closes an idle connection after 5 s"
    assert isinstance(config.metrics, ScrapeConfig)
    assert (config.http2_engine, replica().protocol) == ("nghttp2", "auto")


def test_metrics_may_be_off() -> None:
    assert upstream({"metrics": "off"}).metrics == "off"


def test_id_is_the_address_unless_given() -> None:
    assert replica().replica.id == "gpu:8000"
    assert replica(id="a").replica.id == "a"
    assert replica(weight=2.0, max_in_flight=3, kv_tokens=4).replica.max_in_flight == 3


def test_tls_files_are_relative_to_the_configuration() -> None:
    config = replica(url="https://gpu", tls={"ca": "ca.pem", "server_name": "x"})
    assert config.tls is not None
    assert config.tls.ca == "/base/ca.pem"
    assert config.tls.verify


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"url": "gpu:8000"}, "$.url"),
        ({"tls": {}}, "$.tls"),
        ({"url": "https://gpu", "tls": {"certificate": "c"}}, "$.tls"),
        ({"url": "https://gpu", "tls": {"verify": False, "ca": "c"}}, "$.tls"),
        ({"weight": 0}, "$.weight"),
        ({"max_in_flight": 0}, "$.max_in_flight"),
        ({"id": "a b"}, "$.id"),
        ({"api_key": "sk-plain"}, "$.api_key"),
        ({"protocol": "h2c"}, "$.protocol"),
        ({"kv_events": "on"}, "$.kv_events"),
        ({"kv_events": {"endpoint": "h:5557"}}, "$.kv_events.endpoint"),
        ({"kv_events": {"endpoint": "tcp://h"}}, "$.kv_events.endpoint"),
        ({"kv_events": {"endpoint": "tcp://*:5557"}}, "$.kv_events.endpoint"),
        (
            {"kv_events": {"endpoint": "tcp://h:1", "replay_endpoint": "tcp://*:2"}},
            "$.kv_events.replay_endpoint",
        ),
        ({"data_parallel_rank": -1}, "$.data_parallel_rank"),
    ],
)
def test_a_bad_replica_is_named(values: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigProblems) as caught:
        replica(**values)
    assert [problem.path for problem in caught.value.problems] == [path]
    assert "sk-plain" not in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"timeouts": {"connect_s": 0}},
        {"retries": {"max_tries": 0}},
        {"retries": {"budget_ratio": 1.5}},
        {"pool": {"warm": 9, "max_idle": 8}},
        {"health": {"backoff_s": 60}},
        {"health": {"path": "health"}},
        {"metrics": {"interval_s": 0.1}},
        {"metrics": "on"},
        {"pool": {"ping_s": 0.5}},
        {"http2_engine": "h3"},
        {"health": {"failure_ratio": 0}},
        {"heartbeats": {"interval_s": 0.1}},
        {"hedge": {}},
        {"hedge": {"after_s": 2, "after_p95_factor": 3}},
        {"hedge": {"after_p95_factor": 0.5}},
        {"hedge": {"after_s": 2}, "heartbeats": {"before_head": True}},
    ],
)
def test_a_bad_upstream_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigProblems):
        upstream(values)


def test_who_can_be_asked_where_its_kv_events_are() -> None:
    assert [replica(engine=kind).kv_source for kind in ("vllm", "sglang", "openai")] == [
        "auto",
        "off",
        "off",
    ]
    told = replica(engine="sglang", kv_events={"endpoint": "tcp://h:5557"})
    assert told.kv_source == told.kv_events
