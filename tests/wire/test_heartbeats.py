"""Comments of the gateway's own on real sockets, over both protocols."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from client import Client, chat, events
from http2_client import Http2Client
from running import InProcess, base_config

from loadtest.replica import FakeReplica
from proxy.heartbeats import COMMENT


@pytest.fixture
async def replica() -> AsyncIterator[FakeReplica]:
    async with FakeReplica() as replica:
        yield replica


@pytest.fixture
async def gateway(replica: FakeReplica, tmp_path: Path) -> AsyncIterator[InProcess]:
    upstream = {"heartbeats": {"interval_s": 0.2, "before_head": True}}
    async with InProcess(base_config([replica.url], upstream=upstream), tmp_path) as gateway:
        yield gateway


@pytest.mark.parametrize("behaviour", ["slow_head=0.5", "stall_first=0.5"])
async def test_a_client_is_told_before_the_replica_begins(
    replica: FakeReplica, gateway: InProcess, behaviour: str
) -> None:
    replica.behaviour = behaviour
    client = await Client.open(gateway.port)
    client.send(chat(max_tokens=3))
    modern = await Http2Client.open(gateway.port)
    over_http2 = await modern.answer(modern.ask(chat(max_tokens=3)))
    answer = await client.answer()
    for complete, body in ((answer.complete, answer.body), (over_http2.complete, over_http2.body)):
        assert complete
        assert body.startswith(COMMENT)
        assert body.endswith(b"data: [DONE]\n\n")
        assert len(events(body)) == len(events(answer.body)) > 3
    client.close()
    modern.close()


@pytest.mark.parametrize("tokens", [2, 20])
async def test_a_silent_stream_gets_comments_between_its_events(
    replica: FakeReplica, gateway: InProcess, tokens: int
) -> None:
    replica.behaviour = f"stall_mid={tokens}"  # 20: by the short way from socket to socket
    client = await Client.open(gateway.port)
    client.send(chat(max_tokens=50))
    assert (await client.head()).status == 200
    modern = await Http2Client.open(gateway.port)
    stream = modern.ask(chat(max_tokens=50))
    body = b""
    while body.count(COMMENT) < 2:
        body += await client.chunk() or b""
    assert body.endswith(COMMENT * 2)
    assert len(events(body)) == tokens + 1
    silent = (COMMENT * 2).rstrip()
    await modern.until(lambda: stream in modern.answers and silent in modern.answers[stream].body)
    assert modern.answers[stream].body.endswith(COMMENT * 2)
    client.close()
    modern.close()
