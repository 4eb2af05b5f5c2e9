"""Gateways that tell each other through a real Valkey what they gave to replicas."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
import redis

from core.metrics import Metrics
from proxy.serve.host_memory import HostMemory
from proxy.serve.host_sharing import HostSharing
from ratelimit import redis_channel
from ratelimit.config import RedisConfig
from routing import hosts
from routing.ledger import WorkerLedger

PLACES = {"a": 0, "b": 3}


class Gateway:
    """Two workers' memory, and what their core does with it."""

    def __init__(self, config: RedisConfig) -> None:
        self.memory = HostMemory(2, 4, 1000)
        self.metrics = Metrics.private()
        self.sharing = HostSharing(self.memory, self.metrics, time.monotonic)
        self.sharing.use(config, PLACES)
        self.accounts = [
            WorkerLedger(self.memory.ledger, number, PLACES).account("b") for number in (0, 1)
        ]
        self.sharing.start()

    def in_flight(self) -> int:
        account = self.accounts[1]
        account.read()
        return account.in_flight

    def value(self, name: str, *labels: str) -> float:
        return self.metrics.value(f"headrace_{name}", *labels)

    async def close(self) -> None:
        await self.sharing.close()
        self.memory.close()


@pytest.fixture
def config(valkey: Any) -> RedisConfig:
    return RedisConfig(url=valkey.url, retry_max_s=0.05, connect_timeout_s=0.5)


@pytest_asyncio.fixture
async def gateways(config: RedisConfig) -> AsyncIterator[tuple[Gateway, Gateway]]:
    both = Gateway(config), Gateway(config)
    for each in both:
        await eventually(functools.partial(_hears_another, each))
    yield both
    for each in both:
        await each.close()


def _hears_another(gateway: Gateway) -> bool:
    return gateway.value("peer_gateways") == 1


async def eventually(condition: Callable[[], object], within_s: float = 30.0) -> None:
    give_up_at = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < give_up_at, "not in time"
        await asyncio.sleep(0.005)


async def test_what_one_gateway_gives_a_replica_counts_at_the_other(
    gateways: tuple[Gateway, Gateway],
) -> None:
    one, two = gateways
    one.accounts[0].charge(100, 200)
    one.accounts[1].charge(7, 8)
    await eventually(lambda: two.in_flight() == 2)
    account = two.accounts[1]
    assert (account.pending_tokens, account.live_tokens) == (107, 208)
    assert account.own.in_flight == 0
    two.accounts[1].charge(1, 1)
    await eventually(lambda: one.in_flight() == 3)
    assert account.in_flight == 3  # its own does not come back
    one.accounts[0].free(100, 200)
    await eventually(lambda: two.in_flight() == 2)


async def test_who_ends_counts_for_nothing_at_once(
    config: RedisConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = Gateway(config), Gateway(config)
    one.accounts[0].charge(5, 5)
    await eventually(lambda: two.in_flight() == 1)
    monkeypatch.setattr(hosts, "EXPIRE_S", 1e9)
    await one.close()
    await eventually(lambda: two.in_flight() == 0)
    await two.close()


async def test_a_gateway_without_redis_is_alone_and_comes_back(
    gateways: tuple[Gateway, Gateway],
    valkey: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, two = gateways
    one.accounts[0].charge(5, 5)
    await eventually(lambda: two.in_flight() == 1)
    assert two.value("hosts_unavailable") == 0
    valkey.stop()
    await eventually(lambda: two.value("hosts_unavailable") == 1)
    monkeypatch.setattr(hosts, "EXPIRE_S", 0.1)
    await eventually(lambda: two.in_flight() == 0)
    monkeypatch.undo()
    two.accounts[1].charge(1, 1)
    assert two.in_flight() == 1
    assert "is not in use" in caplog.text
    valkey.start()
    await eventually(lambda: two.in_flight() == 2)
    assert two.value("hosts_unavailable") == 0


async def test_a_redis_that_says_nothing_is_given_up(
    gateways: tuple[Gateway, Gateway], valkey: Any
) -> None:
    one, two = gateways
    valkey.pause()
    try:
        await eventually(lambda: two.value("hosts_unavailable") == 1)
    finally:
        valkey.resume()
    one.accounts[0].charge(5, 5)
    await eventually(lambda: two.in_flight() == 1)


async def test_garbage_is_counted_and_ignored(
    gateways: tuple[Gateway, Gateway], valkey: Any, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = gateways
    caplog.set_level(logging.WARNING)
    with redis.Redis(unix_socket_path=valkey.socket_path) as client:
        for number in range(20):
            client.publish("headrace:hosts", b"\xff" * number * 1000)
        client.publish("headrace:hosts", b"x" * 5_000_000)
    await eventually(lambda: two.value("peer_messages_total", "garbage") == 21)
    assert sum("no gateway" in record.message for record in caplog.records) == 2  # one each
    one.accounts[0].charge(5, 5)
    await eventually(lambda: two.in_flight() == 1)


async def test_another_configuration_takes_effect(gateways: tuple[Gateway, Gateway]) -> None:
    one, two = gateways
    one.accounts[0].charge(5, 5)
    await eventually(lambda: two.in_flight() == 1)
    two.sharing.use(None, PLACES)
    await eventually(lambda: two.in_flight() == 0)
    assert two.value("hosts_unavailable") == 0
    await eventually(lambda: one.value("peer_gateways") == 0)


async def test_a_channel_that_falls_silent_is_connected_anew(
    config: RedisConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_channel, "SILENT_S", 0.05)
    changes: list[bool] = []
    channel = redis_channel.RedisChannel(config, "x", lambda data: None, changes.append)
    channel.start()
    await eventually(lambda: changes.count(True) >= 2)
    assert changes[:3] == [True, False, True]
    await channel.close()
