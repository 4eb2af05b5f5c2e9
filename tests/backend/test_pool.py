from __future__ import annotations

from typing import Any

import pytest

from backend.config import ReplicaConfig, UpstreamConfig
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
