"""How the process ends: streams first, new connections never, and nothing is lost."""

from __future__ import annotations

import asyncio
import signal
import time

import orjson
from client import chat, content, events
from running import Caller, Identity, Process, admin, eventually

from loadtest.replica import FakeReplica


async def test_live_streams_finish_and_nothing_new_begins(
    identity: Identity, replicas: list[FakeReplica]
) -> None:
    document = identity.config([replica.url for replica in replicas], workers=2)
    with Process(document) as gateway:
        caller = Caller(gateway, identity)
        expected = (await caller.ask(chat(max_tokens=40))).text
        idle = await caller.open()
        clients = [await caller.open() for _ in range(6)]
        for client in clients:
            caller.send(client, chat(max_tokens=40, user="fake:token_ms=15"))
            assert (await client.head()).status == 200
        gateway.signal(signal.SIGTERM)

        async def refused() -> bool:
            try:
                (await caller.open()).close()
            except OSError:
                return True
            return False

        await eventually(refused, within_s=3)
        for client in clients:
            body = b""
            while chunk := await client.chunk():
                body += chunk
            assert chunk == b"", "a stream was cut"
            assert body.endswith(b"data: [DONE]\n\n")
            assert "".join(content(orjson.loads(data)) for data in events(body)) == expected
            client.close()
        assert await idle.reader.read() == b""  # idle connections are closed at once
        idle.close()
        assert await asyncio.to_thread(gateway.ended) == 0
        assert [record["reason"] for record in gateway.records()] == ["ok"] * 7


async def test_a_stream_that_does_not_end_is_cut_when_time_is_up(
    identity: Identity, replicas: list[FakeReplica]
) -> None:
    document = identity.config([replica.url for replica in replicas], drain_s=0.5)
    with Process(document) as gateway:
        caller = Caller(gateway, identity)
        client = await caller.open()
        caller.send(client, chat(user="fake:stall_mid=2"))
        assert (await client.head()).status == 200
        asked_at = time.monotonic()
        gateway.signal(signal.SIGTERM)
        body = b""
        while chunk := await client.chunk():
            body += chunk
        assert chunk is None, "a cut stream must not look complete"
        assert b'"error"' in body
        assert b"[DONE]" not in body
        assert await asyncio.to_thread(gateway.ended) == 0
        assert time.monotonic() - asked_at < 5
        client.close()


async def test_the_news_spreads_before_connections_are_refused(
    identity: Identity, replicas: list[FakeReplica]
) -> None:
    document = identity.config([replica.url for replica in replicas], workers=2, propagation_s=1.5)
    with Process(document) as gateway:
        caller = Caller(gateway, identity)
        kept = await caller.open()
        caller.send(kept, chat(max_tokens=1))
        assert "connection" not in (await kept.answer()).headers
        asked_at = time.monotonic()
        gateway.signal(signal.SIGTERM)

        async def unready() -> bool:
            return (await admin(gateway, "/readyz")).status == 503

        await eventually(unready, within_s=1)
        health = await caller.ask(b"", method="GET", path="/healthz")
        assert health.status == 503
        # Who comes all the same is served, and told to go elsewhere.
        caller.send(kept, chat(max_tokens=1))
        for answer in (await kept.answer(), await caller.ask(chat(max_tokens=1))):
            assert (answer.status, answer.complete) == (200, True)
            assert answer.headers["connection"] == "close"
        assert time.monotonic() - asked_at < 1.5
        assert await kept.reader.read() == b""
        kept.close()
        assert await asyncio.to_thread(gateway.ended) == 0
        assert time.monotonic() - asked_at >= 1.5


async def test_a_second_signal_cuts_what_is_still_streaming(
    identity: Identity, replicas: list[FakeReplica]
) -> None:
    document = identity.config([replica.url for replica in replicas], propagation_s=60)
    with Process(document) as gateway:
        caller = Caller(gateway, identity)
        client = await caller.open()
        caller.send(client, chat(user="fake:stall_mid=2"))
        assert (await client.head()).status == 200
        gateway.signal(signal.SIGTERM)

        async def stopping() -> bool:
            return b"stopping (SIGTERM)" in gateway.stderr()

        await eventually(stopping)
        gateway.signal(signal.SIGTERM)
        body = b""
        while chunk := await client.chunk():
            body += chunk
        assert chunk is None, "a cut stream must not look complete"
        assert b'"error"' in body
        assert await asyncio.to_thread(gateway.ended) == 0
        assert b"killing" not in gateway.stderr()
        client.close()
