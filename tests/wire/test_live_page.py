"""The live page of the running gateway: its files, and what its feed says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import yaml
from client import Client, ask, chat
from ports import free_port
from running import InProcess, base_config, eventually

from loadtest.replica import FakeReplica
from proxy.serve.__main__ import main

CANARY = "zanzibar-canary"


async def feed(port: int) -> AsyncIterator[dict[str, Any]]:
    """Its documents, until the gateway ends it."""
    client = await Client.open(port)
    try:
        client.send(b"", method="GET", path="/live")
        answer = await client.head()
        assert answer.headers["content-type"].startswith("text/event-stream")
        while chunk := await client.chunk():
            yield json.loads(chunk.removeprefix(b"data: "))
    finally:
        client.close()


async def test_the_feed_shows_what_happens(tmp_path: Path) -> None:
    async with FakeReplica() as replica:
        document = base_config(
            [replica.url],
            admin={"address": f"127.0.0.1:{free_port()}"},
            budgets={"default": "chat"},
        )
        async with (
            InProcess(document, tmp_path) as gateway,
            aclosing(feed(gateway.admin_port)) as seen,
        ):
            before = after = await anext(seen)
            await ask(gateway.port, chat(CANARY, max_tokens=5))
            await ask(gateway.port, chat(CANARY, model="none"))
            while len(after["recent"]) < 2:
                after = await anext(seen)
    assert (before["ready"], before["workers"]) == (True, 1)
    assert before["traffic"]["requests_per_s"] == 0
    assert before["recent"] == []
    assert after["traffic"]["requests_per_s"] > 0
    assert after["traffic"]["ttft_ms"]["p50"] > 0
    assert after["traffic"]["tpot_ms"]["p50"] > 0
    assert after["traffic"]["itl_ms"]["p50"] > 0
    assert [row["id"] for row in after["replicas"]] == ["r0"]
    assert {row["tier"] for row in after["tiers"]} == {"chat"}
    refused, good = after["recent"]
    assert (refused["status"], good["status"]) == (404, 200)
    assert good["relay_ms"] > 0
    assert CANARY not in json.dumps(after)


async def test_the_same_figures_in_a_terminal(tmp_path: Path, capsys: Any) -> None:
    async with FakeReplica() as replica:
        document = base_config([replica.url], admin={"address": f"127.0.0.1:{free_port()}"})
        path = tmp_path / "headrace.yaml"
        path.write_text(yaml.safe_dump(document))
        async with InProcess(document, tmp_path):
            assert await asyncio.to_thread(main, ["top", "-c", str(path), "--once"]) == 0
            shown: str = capsys.readouterr().out
            watching = asyncio.ensure_future(asyncio.to_thread(main, ["top", "-c", str(path)]))

            async def looking() -> bool:
                return "r0" in capsys.readouterr().out

            await eventually(looking)
        assert await watching == 1
    assert shown.startswith("headrace  ready")
    assert "r0" in shown
    assert "the gateway has ended" in capsys.readouterr().err


async def test_the_files_are_served_with_a_strict_policy(tmp_path: Path) -> None:
    async with FakeReplica() as replica:
        document = base_config([replica.url], admin={"address": f"127.0.0.1:{free_port()}"})
        async with InProcess(document, tmp_path) as gateway:
            for path in ("/", "/page.css", "/page.js"):
                answer = await ask(gateway.admin_port, b"", method="GET", path=path)
                assert answer.status == 200
                assert "default-src 'none'" in answer.headers["content-security-policy"]
                assert answer.body


async def test_the_gateway_ends_while_somebody_is_looking(tmp_path: Path) -> None:
    async with FakeReplica() as replica:
        document = base_config([replica.url], admin={"address": f"127.0.0.1:{free_port()}"})
        async with InProcess(document, tmp_path) as gateway:
            seen = feed(gateway.admin_port)
            await anext(seen)
        async for _ in seen:
            pass  # it ends
