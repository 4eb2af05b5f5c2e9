"""Probes and scrapes against real sockets."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from listening import Site

from backend import asking
from backend.config import HealthConfig, ReplicaConfig, ScrapeConfig, UpstreamConfig
from backend.dial import REFUSED
from backend.registry import Registry
from core import tasks
from core.errors import UpstreamUnreachable
from core.metrics import Metrics
from core.section import Secret
from core.shared_probes import SharedProbes

METRICS = (
    'vllm:num_requests_running{engine="0"} 3.0\n'
    'vllm:num_requests_waiting{engine="0"} 1.0\n'
    'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0\n'
)
FAST = HealthConfig(
    interval_s=0.03, timeout_s=0.1, unhealthy_after=2, backoff_s=0.05, max_backoff_s=0.1
)


class FakeReplica:
    """A server whose health and metrics a test sets; `port` stays the same over restarts."""

    def __init__(self) -> None:
        self.health: Callable[[], web.StreamResponse] = web.Response
        self.delay_s = 0.0
        self.metrics = METRICS
        self.seen: list[web.Request] = []
        self.site = Site(web.get("/health", self._health), web.get("/metrics", self._metrics))
        self.start, self.stop = self.site.start, self.site.stop

    @property
    def port(self) -> int:
        return self.site.port

    async def _health(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        await asyncio.sleep(self.delay_s)
        return self.health()

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        return web.Response(text=self.metrics)


@asynccontextmanager
async def watching(**options: Any) -> AsyncIterator[tuple[FakeReplica, Registry]]:
    """A started registry of one replica, with everything fast."""
    server = FakeReplica()
    await server.start()
    options.setdefault("health", FAST)
    options.setdefault("metrics", "off")
    replica = ReplicaConfig(url=f"http://127.0.0.1:{server.port}", model="m", id="r")
    registry = Registry([replica], UpstreamConfig(**options), Metrics.private(), time.monotonic)
    before = tasks.running()
    try:
        await registry.start()
        yield server, registry
    finally:
        await registry.close()
        await server.stop()
        assert tasks.running() == before


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def test_ready_after_the_first_answer() -> None:
    async with watching() as (_, registry):
        assert registry.ready() is not None
        await until(lambda: registry.ready() is None)


async def test_a_stopped_replica_leaves_and_comes_back() -> None:
    async with watching() as (server, registry):
        refused: list[str] = []
        registry.hooks.on_refused = refused.append
        await until(lambda: registry.ready() is None)
        await server.stop()
        await until(lambda: not registry.candidates("m"))
        assert refused
        assert registry.ready() == "model m: no usable replica, all 1 are down"
        await server.start()
        await until(lambda: registry.ready() is None)
        assert [replica.id for replica in registry.candidates("m")] == ["r"]


async def test_503_is_down() -> None:
    async with watching() as (server, registry):
        await until(lambda: registry.ready() is None)
        server.health = lambda: web.Response(status=503)
        await until(lambda: registry.ready() is not None)
        server.health = web.Response
        await until(lambda: registry.ready() is None)


async def test_redirects_are_not_followed() -> None:
    async with watching() as (server, registry):
        server.health = lambda: web.Response(status=302, headers={"location": "/metrics"})
        await until(lambda: "down" in (registry.ready() or ""))
        assert {request.path for request in server.seen} == {"/health"}


async def test_slow_health_while_bytes_arrive() -> None:
    async with watching() as (server, registry):
        await until(lambda: registry.ready() is None)
        reads = iter(range(1_000_000))
        registry.hooks.activity = lambda _: next(reads)
        server.delay_s = 1.0
        asked = len(server.seen)
        await until(lambda: len(server.seen) > asked + 3)
        assert registry.ready() is None
        assert registry.candidates("m")


async def test_nobody_listens_from_the_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    replica = ReplicaConfig(url=f"http://127.0.0.1:{port}", model="m")
    config = UpstreamConfig(health=FAST, metrics="off")
    registry = Registry([replica], config, Metrics.private(), time.monotonic)
    await registry.start()
    await until(lambda: not registry.candidates("m"))
    await registry.close()


async def test_load_is_scraped() -> None:
    async with watching(metrics=ScrapeConfig(interval_s=0.5)) as (_, registry):
        await until(lambda: registry.load("r") is not None)
        load = registry.load("r")
        assert load is not None
        assert (load.running, load.waiting, load.kv_tokens) == (3, 1, 1600)


async def test_nothing_is_asked_when_both_are_off() -> None:
    async with watching(active_health=False) as (server, registry):
        assert registry.ready() is None
        assert not tasks.running()
        assert not server.seen


async def test_the_replicas_own_key_is_sent(monkeypatch: Any) -> None:
    monkeypatch.setenv("REPLICA_KEY", "sk-1")
    server = FakeReplica()
    await server.start()
    replica = ReplicaConfig(
        url=f"http://127.0.0.1:{server.port}", model="m", api_key=Secret("env:REPLICA_KEY")
    )
    config = UpstreamConfig(health=FAST, metrics="off")
    registry = Registry([replica], config, Metrics.private(), time.monotonic)
    await registry.start()
    await until(lambda: bool(server.seen))
    await registry.close()
    await server.stop()
    assert server.seen[0].headers["authorization"] == "Bearer sk-1"


def of_one_host(replica: ReplicaConfig, config: UpstreamConfig, count: int) -> list[Registry]:
    """One for each worker of a host."""
    memory = SharedProbes(count, 1)

    def made(worker: int) -> Registry:
        cell = memory.cell(0, worker)
        return Registry(
            [replica], config, Metrics.private(), time.monotonic, cell_of=lambda replica_id: cell
        )

    return [made(worker) for worker in range(count)]


async def test_workers_ask_once_for_all_and_all_hear_of_a_failure_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "LOOK_S", 0.01)
    server = FakeReplica()
    await server.start()
    replica = ReplicaConfig(url=f"http://127.0.0.1:{server.port}", model="m", id="r")
    slow = HealthConfig(interval_s=3600, timeout_s=5, backoff_s=600, max_backoff_s=600)
    config = UpstreamConfig(health=slow, metrics=ScrapeConfig(interval_s=3600))
    workers = of_one_host(replica, config, 3)
    try:
        await workers[0].start()
        await until(lambda: workers[0].ready() is None and workers[0].load("r") is not None)
        assert [request.path for request in server.seen].count("/health") == 1
        for registry in workers[1:]:
            await registry.start()  # who comes later asks for itself, once
        await until(lambda: all(one.ready() is None and one.load("r") for one in workers))
        asked = len(server.seen)
        await server.stop()
        workers[1].failed("r", UpstreamUnreachable("no", code=REFUSED))
        await until(lambda: not any(one.candidates("m") for one in workers))
        assert len(server.seen) == asked
    finally:
        for registry in workers:
            await registry.close()
        await server.stop()


async def test_the_next_worker_asks_when_one_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "LOOK_S", 0.01)
    server = FakeReplica()
    await server.start()
    replica = ReplicaConfig(url=f"http://127.0.0.1:{server.port}", model="m", id="r")
    one, two = of_one_host(replica, UpstreamConfig(health=FAST, metrics="off"), 2)
    try:
        await one.start()
        await two.start()
        await until(lambda: one.ready() is None and two.ready() is None)
        await one.close()
        asked = len(server.seen)
        await until(lambda: len(server.seen) > asked + 2)
        server.health = lambda: web.Response(status=503)
        await until(lambda: not two.candidates("m"))
    finally:
        await one.close()
        await two.close()
        await server.stop()
