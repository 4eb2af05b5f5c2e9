"""What one exchange and one token cost, counted and not timed, so that it is the same everywhere.

A budget that is exceeded says that something was added to the path of every request or token. When
that is worth it, raise the budget in the same change; when something was saved, lower it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
from client import chat
from cost import Cost, Counting
from running import Identity, InProcess

CALLS_PER_REQUEST = 320
COPIED_PER_REQUEST = 1600
"""Bytes that are written but were made here: the request to the replica, the head of the answer,
and events that are joined or framed anew."""
SLACK = 45
"""Calls that a change may add or save before it has to say so."""
CALLS_PER_TOKEN = 1
FEW, MANY = 20, 60
ATTEMPTS = 4

HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
OPENING = b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"demo",'
USAGE = b'"choices":[],"usage":{"prompt_tokens":9,"total_tokens":29,"completion_tokens":20}}\n\n'


def chunk(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


def delta(inside: bytes) -> bytes:
    return chunk(
        OPENING + b'"choices":[{"index":0,"delta":{' + inside + b'},"logprobs":null}]}\n\n'
    )


ROLE = delta(b'"role":"assistant","content":""')
TOKEN = delta(b'"content":" token"')
END = chunk(OPENING + USAGE) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Steps(asyncio.Protocol):
    """One end of a connection, driven by the test: `until` waits for bytes that it was sent."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._received = bytearray()
        self._came = asyncio.Event()
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._came.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    @property
    def asked(self) -> bool:
        return self._received.startswith(b"POST ")

    async def until(self, end: bytes) -> bytes:
        while not self._received.endswith(end):
            self._came.clear()
            try:
                await asyncio.wait_for(self._came.wait(), 30)
            except TimeoutError:
                raise AssertionError(f"only {bytes(self._received)!r} came") from None
        received = bytes(self._received)
        self._received.clear()
        return received


class Bench:
    """A client and a replica around a gateway, one exchange at a time."""

    def __init__(self, client: Steps, replicas: list[Steps], head: str) -> None:
        self._client = client
        self._replicas = replicas
        self._head = head
        self._asked = 0

    async def exchange(self, tokens: int) -> None:
        self._asked += 1
        question = f"What turns the mill, and who pays for the grain? {self._asked:05}"
        body = orjson.dumps(chat(question, max_tokens=tokens))
        head = f"{self._head}content-length: {len(body)}\r\n\r\n".encode()
        self._client.transport.write(head + body)
        # Other connections ask for other things.
        while not (asked := [replica for replica in self._replicas if replica.asked]):
            await asyncio.sleep(0)
        replica = asked[0]
        await replica.until(b"}")
        replica.transport.write(HEAD + ROLE)
        await self._client.until(b"\n\n\r\n")
        for _ in range(tokens):
            replica.transport.write(TOKEN)
            await self._client.until(b"\n\n\r\n")
        replica.transport.write(END)
        await self._client.until(b"0\r\n\r\n")
        # The gateway has its own to do after the last byte.
        for _ in range(5):
            await asyncio.sleep(0)

    async def cost(self, tokens: int) -> Cost:
        """Of one exchange; the least of several, as timers run besides."""
        costs = []
        for _ in range(ATTEMPTS):
            with Counting() as cost:
                await self.exchange(tokens)
            costs.append(cost)
        return min(costs, key=lambda cost: cost.calls)


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    """With identity, limits, tokens and prefix routing, over plain HTTP/1.1. What is done for many
    exchanges at a time is not counted: whether it falls into one depends on the machine."""
    monkeypatch.setattr("proxy.access_log.FLUSH_S", 3600.0)
    loop, replicas = asyncio.get_running_loop(), list[Steps]()

    def replica() -> Steps:
        replicas.append(Steps())
        return replicas[-1]

    server = await loop.create_server(replica, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        identity = Identity(tmp_path)
        rules = [
            {"name": "requests", "limit": 1_000_000, "match": {"tiers": ["gold"]}},
            {
                "name": "tokens",
                "limit": 1_000_000,
                "unit": "total_tokens",
                "per": ["tenant", "model"],
            },
        ]
        document = identity.config(
            [f"http://127.0.0.1:{port}"],
            limits={"rules": rules},
            upstream={"active_health": False, "metrics": "off", "pool": {"warm": 0}},
            log={"access": str(tmp_path / "log")},
        )
        document["listen"]["tls"] = "off"
        async with InProcess(document, tmp_path) as gateway:
            _, client = await loop.create_connection(Steps, "127.0.0.1", gateway.port)
            head = (
                "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\naccept: */*\r\n"
                "content-type: application/json\r\nuser-agent: OpenAI/Python 3.57.0\r\n"
                f"authorization: Bearer {identity.issuer.token('acme', plan='gold')}\r\n"
            )
            bench = Bench(client, replicas, head)
            for _ in range(3):  # the token is known, the connection open, the plan made
                await bench.exchange(2)
            yield bench
            client.transport.close()
            await client.lost.wait()
        for each in replicas:
            await each.lost.wait()


async def test_an_exchange_keeps_to_its_budget(bench: Bench) -> None:
    cost = await bench.cost(1)
    assert cost.calls <= CALLS_PER_REQUEST, f"{cost.calls} calls: {cost.dearest()}"
    assert cost.calls > CALLS_PER_REQUEST - SLACK, f"{cost.calls} calls: lower the budget"
    assert cost.tasks == 1
    # The request to the replica; to the client the head with the first event, a token, the end.
    assert cost.writes == 4
    assert cost.copied <= COPIED_PER_REQUEST


async def test_a_token_is_one_call_one_write_and_no_copy(bench: Bench) -> None:
    few, many = await bench.cost(FEW), await bench.cost(MANY)
    tokens = MANY - FEW
    # Whole calls for each token: timers run besides, more often on a slow machine.
    more = many.by_function - few.by_function
    assert more.total() // tokens == CALLS_PER_TOKEN, more
    assert many.writes - few.writes == tokens
    assert many.copied - few.copied < tokens  # digits of durations in the head
    assert many.tasks == few.tasks == 1
