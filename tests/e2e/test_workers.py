"""Two workers: one is killed, the rest goes on, and nothing counted is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from typing import Any

import orjson
import pytest
import pytest_asyncio
from client import Client, chat, content
from running import Caller, Identity, Process, admin, eventually, metric

from loadtest.replica import FakeReplica

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(identity: Identity) -> AsyncIterator[Process]:
    async with FakeReplica() as one, FakeReplica() as two:
        with Process(identity.config([one.url, two.url], workers=2)) as gateway:
            yield gateway


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """So that whoever connects meets the other worker."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def connected(caller: Caller, without: int) -> Client:
    with stopped(without):
        return await caller.open()


async def test_a_killed_worker_takes_only_its_own_streams_with_it(
    identity: Identity, gateway: Process
) -> None:
    caller = Caller(gateway, identity)
    victim, survivor = gateway.workers
    lost = await connected(caller, without=survivor)
    kept = await connected(caller, without=victim)
    for client in (lost, kept):
        for _ in range(5):
            caller.send(client, chat(max_tokens=2))
            assert (await client.answer()).complete

    async def completed(count: int) -> None:
        """An exchange is counted when its last byte was sent, which the client may have before."""

        async def counted() -> bool:
            route, status = "/v1/chat/completions", "200"
            name = "headrace_exchanges_total"
            return await metric(gateway, name, route=route, status=status) == count

        await eventually(counted)

    await completed(10)
    for client in (lost, kept):
        caller.send(client, chat(max_tokens=50, user="fake:token_ms=20"))
        assert (await client.head()).status == 200
        assert await client.chunk()
    assert await metric(gateway, "headrace_exchanges_in_flight") == 2
    os.kill(victim, signal.SIGKILL)
    while await lost.chunk():
        pass
    assert await lost.chunk() is None  # cut, not ended
    text = ""
    while chunk := await kept.chunk():
        text += chunk.decode()
    assert chunk == b""
    assert text.endswith("data: [DONE]\n\n")

    async def replaced() -> bool:
        pids = gateway.workers
        return len(pids) == 2 and victim not in pids and survivor in pids

    await eventually(replaced)

    async def ready() -> bool:
        return (await admin(gateway, "/readyz")).status == 200

    await eventually(ready)
    successor = next(pid for pid in gateway.workers if pid != survivor)
    await completed(11)
    assert await metric(gateway, "headrace_exchanges_in_flight") == 0
    newer = await connected(caller, without=survivor)
    for _ in range(5):
        caller.send(newer, chat(max_tokens=2))
        assert (await newer.answer()).complete
    await completed(16)
    assert await metric(gateway, "headrace_tokens_total", model="demo", kind="completion") == (
        15 * 2 + 50
    )
    assert f"(pid {victim}) ended with SIGKILL" in gateway.stderr().decode()
    for client in (lost, kept, newer):
        client.close()
    assert successor in gateway.workers


class TlsClient:
    """A client that resumes its session and remembers whether that worked."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.session: ssl.SSLSession | None = None
        self.reused: bool | None = None

    def chat(self) -> str:
        """A whole chat on a connection of its own; its text."""
        body = orjson.dumps(chat(stream=False, max_tokens=5))
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Authorization: Bearer {self.caller.token}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with (
            socket.create_connection(("127.0.0.1", self.caller.gateway.port), 10) as plain,
            self.caller.context.wrap_socket(
                plain, server_hostname="localhost", session=self.session
            ) as secure,
        ):
            secure.sendall(head.encode() + body)
            answer = b""
            while data := secure.recv(65536):
                answer += data
            self.reused = secure.session_reused
            self.session = secure.session
        assert answer.startswith(b"HTTP/1.1 200 ")
        return content(orjson.loads(answer.partition(b"\r\n\r\n")[2]))


async def test_every_worker_resumes_every_session(identity: Identity, gateway: Process) -> None:
    client = TlsClient(Caller(gateway, identity))
    text = await asyncio.to_thread(client.chat)
    assert client.reused is False
    resumed = []
    for other in gateway.workers * 3:
        with stopped(other):
            assert await asyncio.to_thread(client.chat) == text
        resumed.append(client.reused)
    assert resumed == [True] * 6


async def test_tls_1_2_is_refused(identity: Identity, gateway: Process) -> None:
    caller: Any = Caller(gateway, identity)
    caller.context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await caller.open()
    modern = await Caller(gateway, identity).open()
    assert modern.writer.get_extra_info("ssl_object").version() == "TLSv1.3"
    modern.close()
