"""Streams of a replica that refuses connections: those go on that tell something."""

from __future__ import annotations

import asyncio
from pathlib import Path

from client import Client, chat
from running import InProcess, base_config

from loadtest.replica import FakeReplica


async def test_comments_do_not_keep_a_stream_alive_and_tokens_do(tmp_path: Path) -> None:
    """A vLLM that was stopped may have lost its engine, and go on to send `: keep-alive`."""
    upstream = {"health": {"interval_s": 0.1, "refused_grace_s": 0.3}}
    async with FakeReplica() as replica:
        document = base_config([replica.url], upstream=upstream)
        async with InProcess(document, tmp_path) as gateway:
            dead, flowing = await Client.open(gateway.port), await Client.open(gateway.port)
            stalled = {"user": "fake:stall_mid=3,keep_alive=0.05", "max_tokens": 10}
            dead.send(chat(**stalled))
            flowing.send(chat(user="fake:token_ms=20", max_tokens=60))
            await dead.reader.readuntil(b": keep-alive")
            await flowing.reader.readuntil(b"data: ")
            replica.stop_listening()
            failed, whole = await asyncio.gather(
                dead.reader.read(), flowing.reader.readuntil(b"data: [DONE]")
            )
            dead.close()
            flowing.close()
    assert b'"error"' in failed
    assert b"[DONE]" not in failed
    assert b'"error"' not in whole
