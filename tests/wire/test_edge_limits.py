"""What one worker takes on: connections, requests, bytes; and what it says to the rest."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from client import Answer, Client, ask, chat
from running import InProcess, base_config, eventually

from loadtest.replica import FakeReplica
from proxy.overload.level import Level

REFUSED = "headrace_downstream_connections_refused_total"
SHED = "headrace_requests_shed_total"
SLOW = "fake:stall_first=20"


@contextlib.asynccontextmanager
async def serving(folder: Path, **listen: Any) -> AsyncIterator[InProcess]:
    async with FakeReplica() as replica:
        document = base_config([replica.url])
        document["listen"] |= listen
        async with InProcess(document, folder) as gateway:
            yield gateway


def assert_overloaded(answer: Answer) -> None:
    assert answer.status == 503
    assert answer.json()["error"]["code"] == "overloaded"
    assert 1 <= int(answer.headers["retry-after"]) <= 3
    assert answer.json()["error"]["request_id"] == answer.headers["x-request-id"]


async def healthy(client: Client) -> bool:
    return (await client.ask(b"", method="GET", path="/healthz")).status == 200


async def is_closed(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return await asyncio.wait_for(reader.read(), 20) == b""
    except ConnectionError:
        return True
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("limit", "label"), [("max_connections", "total"), ("max_connections_per_address", "address")]
)
async def test_a_connection_too_many_is_closed_at_once(
    tmp_path: Path, limit: str, label: str
) -> None:
    async with serving(tmp_path, limits={limit: 2}) as gateway:
        clients = [await Client.open(gateway.port) for _ in range(2)]
        for client in clients:
            assert await healthy(client)
        assert await is_closed(gateway.port)
        assert gateway.metric(REFUSED, label) == 1
        clients.pop().close()

        async def counted_out() -> bool:
            return gateway.metric("headrace_downstream_connections") == 1

        await eventually(counted_out)
        clients.append(await Client.open(gateway.port))
        for client in clients:
            assert await healthy(client)
            client.close()


async def test_a_trusted_proxy_has_as_many_connections_as_it_likes(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "limits": {"max_connections_per_address": 1},
        "trusted_proxies": ["127.0.0.1"],
    }
    async with serving(tmp_path, **options) as gateway:
        clients = [await Client.open(gateway.port) for _ in range(3)]
        for client in clients:
            assert await healthy(client)
            client.close()


async def test_a_request_too_many_is_refused_and_health_is_not(tmp_path: Path) -> None:
    async with serving(tmp_path, limits={"max_requests_in_flight": 2}) as gateway:
        busy = [await Client.open(gateway.port) for _ in range(2)]
        for client in busy:
            client.send(chat(user=SLOW))

        async def in_flight() -> bool:
            return gateway.metric("headrace_exchanges_in_flight") == 2

        await eventually(in_flight)
        other = await Client.open(gateway.port)
        for _ in range(3):  # on one connection: it stays open
            assert_overloaded(await other.ask(chat()))
        assert_overloaded(await other.ask(b"", method="GET", path="/v1/models"))
        assert await healthy(other)
        assert gateway.metric(SHED, "in_flight") == 4
        assert gateway.metric("headrace_failures_total", "gate", "overloaded") == 4
        busy.pop().close()

        async def served() -> bool:
            return (await other.ask(chat())).status == 200

        await eventually(served)
        for client in (*busy, other):
            client.close()


async def test_bodies_that_would_fill_the_memory_are_refused(tmp_path: Path) -> None:
    limits = {"max_body_bytes": 65_536, "max_buffered_bytes": 100_000}
    async with serving(tmp_path, limits=limits) as gateway:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n"
        first = await Client.open(gateway.port)
        first.writer.write(head + bytes(59_999))

        async def held() -> bool:
            return gateway.metric("headrace_buffered_bytes") == 59_999

        await eventually(held)
        second = await Client.open(gateway.port)
        second.writer.write(head + bytes(50_000))
        answer = await second.answer()
        assert_overloaded(answer)
        assert answer.headers["connection"] == "close"
        assert gateway.metric(SHED, "buffered") == 1
        small = await ask(gateway.port, chat())  # what arrives in one piece is never held
        assert small.status == 200
        first.close()

        async def let_go() -> bool:
            return gateway.metric("headrace_buffered_bytes") == 0

        await eventually(let_go)
        second.close()


async def test_a_body_is_counted_until_its_exchange_ends(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway:
        document = chat("x" * 30_000, user=SLOW)
        client = await Client.open(gateway.port)
        client.send(document)

        async def held() -> bool:
            return 30_000 < gateway.metric("headrace_buffered_bytes") < 31_000

        await eventually(held)
        client.close()

        async def let_go() -> bool:
            return gateway.metric("headrace_buffered_bytes") == 0

        await eventually(let_go)


async def test_what_each_level_sheds(tmp_path: Path) -> None:
    overload = {"descriptors": "off", "memory": "off", "loop_lag_s": "off"}
    async with serving(tmp_path, overload=overload) as gateway:
        admission = gateway.worker.admission
        client = await Client.open(gateway.port)
        assert "connection" not in (await client.ask(chat())).headers

        admission.level, admission.keep_alive = Level.CLOSE, False
        answer = await client.ask(chat())
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        client.close()

        admission.level, admission.keep_alive = Level.REFUSE, True
        client = await Client.open(gateway.port)
        assert_overloaded(await client.ask(chat()))
        assert await healthy(client)
        client.close()
