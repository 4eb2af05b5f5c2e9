from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backend.config import PoolConfig, ReplicaConfig, TimeoutsConfig, UpstreamConfig
from backend.pool import Pool
from core.errors import ConfigError
from core.metrics import Metrics
from core.section import Secret


def pool(*replicas: ReplicaConfig, **options: Any) -> Pool:
    return Pool(replicas, UpstreamConfig(), Metrics.private(), lambda: 0.0, **options)


def test_doubled_id() -> None:
    replica = ReplicaConfig(url="http://gpu", model="m")
    with pytest.raises(ConfigError, match="two replicas have the id gpu:80"):
        pool(replica, replica)


def test_a_context_that_was_not_prepared() -> None:
    with pytest.raises(ConfigError, match="gpu:443"):
        pool(ReplicaConfig(url="https://gpu", model="m"), contexts={})


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "clé", "null\x01"])
def test_a_key_that_would_break_the_head(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("REPLICA_KEY", key)
    with pytest.raises(ConfigError) as caught:
        pool(ReplicaConfig(url="http://gpu", model="m", api_key=Secret("env:REPLICA_KEY")))
    assert key not in str(caught.value)


async def test_unknown_replica() -> None:
    with pytest.raises(KeyError):
        await pool().connect("r")


def test_nothing_is_open_at_first() -> None:
    made = pool(ReplicaConfig(url="http://gpu", model="m"))
    assert (made.open_connections(), made.activity("gpu:80")) == (0, 0)


def test_a_change_of_what_connections_depend_on_makes_another_target() -> None:
    replica = ReplicaConfig(url="http://gpu", model="m", id="r")
    made = pool(replica)
    (before,) = made.stage([replica], UpstreamConfig()).values()
    same = ReplicaConfig(url="http://gpu", model="other", id="r", weight=2.0, max_in_flight=1)
    slow = UpstreamConfig(timeouts=TimeoutsConfig(first_token_s=1.0, idle_s=1.0))
    assert made.stage([same], slow) == {"r": before}
    for url, upstream in (
        ("http://gpu:81", UpstreamConfig()),
        ("http://gpu", UpstreamConfig(pool=PoolConfig(warm=2))),
        ("http://gpu", UpstreamConfig(timeouts=TimeoutsConfig(connect_s=1.0))),
    ):
        other = ReplicaConfig(url=url, model="m", id="r")
        assert made.stage([other], upstream)["r"] is not before
    assert made.stage([replica], UpstreamConfig()) == {"r": before}


async def test_a_removed_replica_is_unknown_at_once_and_leaves_no_series() -> None:
    metrics = Metrics.private()
    first, second = (ReplicaConfig(url=f"http://gpu-{n}", model="m", id=f"r{n}") for n in (0, 1))
    config = UpstreamConfig(pool=PoolConfig(warm=0))
    made = Pool([first, second], config, metrics, lambda: 0.0)
    await made.start()
    await asyncio.sleep(0)
    shown = metrics.board.collect()
    assert ("r0", "idle") in shown["headrace_upstream_connections"].series
    made.commit(made.stage([second], config), config)
    await made.close()
    await made.start()
    await asyncio.sleep(0)
    await made.close()
    families = metrics.board.collect().values()
    assert {labels[0] for family in families for labels in family.series if labels} == {"r1"}
    with pytest.raises(KeyError):
        await made.connect("r0")
