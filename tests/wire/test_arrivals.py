"""From the accepted socket to the first request: PROXY header, TLS, and all that fails there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from client import Client, ask, chat
from http2_client import CHAT, Http2Client
from http2_frames import PREFACE, settings
from running import NEVER_TOO_BUSY, Identity, InProcess, eventually

from loadtest.replica import FakeReplica
from proxy.listen.proxy_protocol import SIGNATURE

IPV4 = SIGNATURE + b"\x21\x11\x00\x0c" + bytes([192, 0, 2, 1, 127, 0, 0, 1]) + b"\x12\x34\x01\xbb"
IPV6 = SIGNATURE + b"\x21\x21\x00\x24" + bytes.fromhex("20010db8" + "00" * 12) * 2 + b"\0\1\0\2"
IPV6_NEIGHBOUR = IPV6[:23] + b"\1" + IPV6[24:]  # of the same /64
LOCAL = SIGNATURE + b"\x20\x00\x00\x00"


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return Identity(tmp_path_factory.mktemp("identity"))


@contextlib.asynccontextmanager
async def serving(
    identity: Identity | None, folder: Path, **listen: Any
) -> AsyncIterator[InProcess]:
    """With TLS if there is an identity; `lines` of the log are in access.jsonl."""
    async with FakeReplica() as replica:
        document = {
            "listen": {
                "addresses": ["127.0.0.1:0"],
                "tls": identity.tls if identity else "off",
                "health_path": "/healthz",
                "overload": NEVER_TOO_BUSY,
                **listen,
            },
            "auth": "none",
            "workers": 1,
            "models": [{"name": "demo"}],
            "replicas": [{"url": replica.url, "model": "demo"}],
            "log": {"access": str(folder / "access.jsonl")},
        }
        async with InProcess(document, folder) as gateway:
            yield gateway


def records(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "access.jsonl").read_bytes().splitlines()
    return [json.loads(line) for line in lines]


async def open_after(
    data: bytes, gateway: InProcess, context: ssl.SSLContext | None, pause_s: float = 0.0
) -> Client:
    """A connection that begins with `data`; byte by byte if there is a pause."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    for piece in [data[n : n + 1] for n in range(len(data))] if pause_s else [data]:
        writer.write(piece)
        await asyncio.sleep(pause_s)
    if context is not None:
        await writer.start_tls(context, server_hostname="localhost")
    return Client(reader, writer)


async def is_closed(gateway: InProcess, data: bytes) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(data)
    try:
        return await asyncio.wait_for(reader.read(), 20) == b""
    except ConnectionError:
        return True
    finally:
        writer.close()


def failures(gateway: InProcess, reason: str) -> float:
    return gateway.metric("headrace_handshake_failures_total", reason)


@pytest.mark.parametrize("secure", [True, False])
async def test_a_proxy_header_says_whose_connection_it_is(
    identity: Identity, tmp_path: Path, secure: bool
) -> None:
    options = {"proxy_protocol": "required", "trusted_proxies": ["127.0.0.0/8"]}
    context = identity.client_context() if secure else None
    async with serving(identity if secure else None, tmp_path, **options) as gateway:
        for header, pause_s in ((IPV4, 0.0), (IPV4, 0.001), (IPV6, 0.0), (LOCAL, 0.0)):
            client = await open_after(header, gateway, context, pause_s)
            assert (await client.ask(chat(stream=False))).status == 200
            client.close()
    peers = [record["peer"] for record in records(tmp_path)]
    assert peers == ["192.0.2.1", "192.0.2.1", "2001:db8::", "127.0.0.1"]


async def test_a_proxy_header_and_http2(identity: Identity, tmp_path: Path) -> None:
    options = {"proxy_protocol": "required", "trusted_proxies": ["127.0.0.0/8", "192.0.2.0/24"]}
    context = identity.client_context()
    context.set_alpn_protocols(["h2"])
    forwarded = [*CHAT, (b"x-forwarded-for", b"1.1.1.1, 198.51.100.4")]
    async with serving(identity, tmp_path, **options) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(IPV4)
        await writer.start_tls(context, server_hostname="localhost")
        client = Http2Client(reader, writer)
        client.send(PREFACE, settings())
        for headers in (CHAT, forwarded):
            assert (await client.answer(client.ask(chat(max_tokens=2), headers))).complete
        client.close()
    assert [record["peer"] for record in records(tmp_path)] == ["192.0.2.1", "198.51.100.4"]


async def test_a_header_and_a_request_in_one_packet(tmp_path: Path) -> None:
    options = {"proxy_protocol": "required", "trusted_proxies": ["127.0.0.0/8"]}
    async with serving(None, tmp_path, **options) as gateway:
        get = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
        client = await open_after(IPV4 + get, gateway, None)
        assert (await client.answer()).status == 200
        client.close()
    assert [record["peer"] for record in records(tmp_path)] == ["192.0.2.1"]


async def test_a_trusted_proxy_must_send_a_header(identity: Identity, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "proxy_protocol": "required",
        "trusted_proxies": ["127.0.0.0/8"],
        "timeouts": {"handshake_s": 0.3},
    }
    async with serving(identity, tmp_path, **options) as gateway:
        assert await is_closed(gateway, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert failures(gateway, "proxy_header_no_header") == 1
        assert await is_closed(gateway, SIGNATURE + b"\x21\x11\xff\xff" + bytes(70_000))
        assert failures(gateway, "proxy_header_too_long") == 1
        assert await is_closed(gateway, IPV4[:20])
        assert failures(gateway, "timeout") == 1
        assert gateway.metric("headrace_downstream_connections") == 0
        client = await open_after(IPV4, gateway, identity.client_context())
        client.close()


async def test_nobody_else_is_believed(identity: Identity, tmp_path: Path) -> None:
    options = {"proxy_protocol": "required", "trusted_proxies": ["10.0.0.0/8"]}
    async with serving(identity, tmp_path, **options) as gateway:
        assert await is_closed(gateway, IPV4)
        assert gateway.metric("headrace_downstream_connections_refused_total", "untrusted") == 1


async def test_connections_are_counted_by_the_address_that_the_header_names(
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {
        "proxy_protocol": "required",
        "trusted_proxies": ["127.0.0.0/8"],
        "limits": {"max_connections_per_address": 2},
    }
    async with serving(None, tmp_path, **options) as gateway:
        refused = "headrace_downstream_connections_refused_total"
        clients = [await open_after(IPV4, gateway, None) for _ in range(2)]
        for client in clients:
            assert (await client.ask(b"", method="GET", path="/healthz")).status == 200
        assert await is_closed(gateway, IPV4)
        assert gateway.metric(refused, "address") == 1
        other = await open_after(IPV6, gateway, None)
        neighbour = await open_after(IPV6_NEIGHBOUR, gateway, None)
        for client in (other, neighbour):
            assert (await client.ask(b"", method="GET", path="/healthz")).status == 200
        assert await is_closed(gateway, IPV6)
        neighbour.close()
        clients.pop().close()

        async def counted_out() -> bool:
            return gateway.metric("headrace_downstream_connections") == 2

        await eventually(counted_out)
        again = await open_after(IPV4, gateway, None)
        assert (await again.ask(b"", method="GET", path="/healthz")).status == 200
        for client in (*clients, other, again):
            client.close()


async def test_forwarded_headers_of_trusted_proxies_alone(tmp_path: Path) -> None:
    headers = {"X-Forwarded-For": "1.1.1.1, 192.0.2.1, 127.0.0.9", "X-Forwarded-Proto": "https"}
    for trusted in (["127.0.0.0/8"], ["10.0.0.0/8"], []):
        async with serving(None, tmp_path, trusted_proxies=trusted) as gateway:
            assert (await ask(gateway.port, chat(), headers=headers)).status == 200
    found = [(record["peer"], record.get("scheme")) for record in records(tmp_path)]
    assert found == [("192.0.2.1", "https"), ("127.0.0.1", None), ("127.0.0.1", None)]


async def test_forwarded_headers_go_no_further(tmp_path: Path) -> None:
    async with FakeReplica() as replica:
        document = {
            "listen": {
                "addresses": ["127.0.0.1:0"],
                "tls": "off",
                "trusted_proxies": ["0.0.0.0/0"],
            },
            "auth": "none",
            "workers": 1,
            "models": [{"name": "demo"}],
            "replicas": [{"url": replica.url, "model": "demo"}],
            "log": {"access": "off"},
        }
        async with InProcess(document, tmp_path) as gateway:
            names = ["X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "Forwarded"]
            await ask(gateway.port, chat(), headers=dict.fromkeys(names, "192.0.2.1"))
        [record] = replica.requests
        assert not [name for name in record.headers if "forwarded" in name.lower()]


# --- TLS


async def test_handshakes_that_fail_are_counted_by_reason_and_not_logged(
    identity: Identity, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    timeouts = {"handshake_s": 0.3}
    with caplog.at_level(logging.INFO):
        async with serving(identity, tmp_path, timeouts=timeouts) as gateway:
            for _ in range(3):
                assert await is_closed(gateway, b"GET / HTTP/1.1\r\n\r\n")
            old = identity.client_context()
            old.maximum_version = ssl.TLSVersion.TLSv1_2
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await Client.open(gateway.port, old)
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.close()
            assert await is_closed(gateway, b"")  # says nothing until its time is up

            async def all_counted() -> bool:
                return all(failures(gateway, reason) for reason in ("reset", "timeout"))

            await eventually(all_counted)
            assert failures(gateway, "http_request") == 3
            assert gateway.metric("headrace_tls_alerts_total", "unsupported_protocol") == 1
            assert gateway.metric("headrace_downstream_connections") == 0
    assert [record.message for record in caplog.records if record.levelno > logging.INFO] == []


async def test_a_client_may_take_its_time_before_it_speaks(
    identity: Identity, tmp_path: Path
) -> None:
    async with serving(identity, tmp_path) as gateway:
        silent = [await asyncio.open_connection("127.0.0.1", gateway.port) for _ in range(20)]
        await asyncio.sleep(0.05)
        context = identity.client_context()
        await asyncio.gather(
            *[writer.start_tls(context, server_hostname="localhost") for _, writer in silent[:15]]
        )
        for reader, writer in silent[:15]:
            client = Client(reader, writer)
            assert (await client.ask(b"", method="GET", path="/healthz")).status == 200
        for _, writer in silent:
            writer.close()

        async def all_gone() -> bool:
            return failures(gateway, "reset") == 5

        await eventually(all_gone)


async def test_so_many_handshakes_at_a_time_and_the_slow_ones_make_room(
    identity: Identity, tmp_path: Path
) -> None:
    limits = {"max_handshakes": 3}
    async with serving(identity, tmp_path, limits=limits) as gateway:
        silent = [await asyncio.open_connection("127.0.0.1", gateway.port) for _ in range(3)]
        began_at = time.monotonic()
        client = await Client.open(gateway.port, identity.client_context())
        waited_s = time.monotonic() - began_at
        assert (await client.ask(chat())).status == 200
        assert waited_s > 1.0  # it waited in the queue
        assert gateway.metric("headrace_accept_pauses_total", "handshakes") >= 1
        assert failures(gateway, "no_room") >= 1
        client.close()
        for _, writer in silent:
            writer.close()
