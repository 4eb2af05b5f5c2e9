"""Budgets: what the log says of each exchange, and the command of the running gateway."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from client import Client, ask, chat
from ports import free_port
from running import InProcess, base_config

from loadtest.replica import FakeReplica
from proxy.serve import budget
from proxy.serve.__main__ import main

# Far from what a slow machine needs, but for what the replica is told to be late with.
TIER = {
    "total_ms": 60_000,
    "gateway_ms": 60_000,
    "first_token_ms": 1500,
    "first_tokens_ms": 60_000,
}


class Pause:
    """In place of `time` for the command: it waits until it is told to go on."""

    def __init__(self) -> None:
        self.began, self.over = threading.Event(), threading.Event()

    def sleep(self, _: float) -> None:
        self.began.set()
        assert self.over.wait(60)


async def test_a_phase_that_became_slow_is_named(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "access.jsonl"
    pause = Pause()
    monkeypatch.setattr(budget, "time", pause)
    async with FakeReplica(prefill_base_ms=0, token_ms=0) as replica:
        document = base_config(
            [replica.url],
            log={"access": str(log)},
            admin={"address": f"127.0.0.1:{free_port()}"},
            budgets={"tiers": {"quick": TIER}, "default": "quick"},
        )
        path = tmp_path / "headrace.yaml"
        path.write_text(yaml.safe_dump(document))
        async with InProcess(document, tmp_path) as gateway:

            async def command(*options: str) -> str:
                arguments = ["budget", "-c", str(path), *options]
                assert await asyncio.to_thread(main, arguments) == 0
                out: str = capsys.readouterr().out
                return out

            client = await Client.open(gateway.port)
            for _ in range(10):
                await client.ask(chat(max_tokens=12))
            assert "OVER" not in (await command("--all")).split("Milliseconds")[0]
            watching = asyncio.ensure_future(command())
            assert await asyncio.to_thread(pause.began.wait, 60)
            slow = chat(max_tokens=12, user="fake:slow_head=1.6")
            await asyncio.gather(*[ask(gateway.port, slow) for _ in range(2)])
            pause.over.set()
            lines = (await watching).splitlines()
            client.close()
    over = [line.split()[:2] for line in lines if line.endswith("OVER")]
    assert over == [["quick", "first_token"]]
    records = [json.loads(line) for line in log.read_bytes().splitlines()]
    assert {record["tier"] for record in records} == {"quick"}
    assert [record.get("over_budget") for record in records] == [None] * 10 + [["first_token"]] * 2


async def test_a_gateway_that_is_not_there_is_said(tmp_path: Path, capsys: Any) -> None:
    document = base_config(["http://127.0.0.1:1"], admin={"address": f"127.0.0.1:{free_port()}"})
    path = tmp_path / "headrace.yaml"
    path.write_text(yaml.safe_dump(document))
    assert main(["budget", "-c", str(path)]) == 2
    assert "$.budgets" in capsys.readouterr().err
    path.write_text(yaml.safe_dump({**document, "budgets": {"default": "chat"}}))
    assert main(["budget", "-c", str(path)]) == 1
    assert "no gateway answers" in capsys.readouterr().err


async def test_the_replica_is_told_what_is_left_and_what_would_be_late_is_refused(
    tmp_path: Path,
) -> None:
    async with FakeReplica() as replica:
        for refuse in (False, True):
            document = base_config([replica.url], budgets={"refuse_late": refuse})
            async with InProcess(document, tmp_path) as gateway:
                client = await Client.open(gateway.port)
                plenty = await client.ask(
                    chat(max_tokens=2), headers={"X-Headrace-Budget-Ms": "60000"}
                )
                late = await client.ask(chat(max_tokens=2), headers={"X-Headrace-Budget-Ms": "0"})
                client.close()
            assert plenty.status == 200
            assert late.status == (503 if refuse else 200)
            if refuse:
                assert late.json()["error"]["code"] == "budget_exceeded"
                assert int(late.headers["retry-after"]) >= 1
    told = [int(request.headers["x-headrace-budget-ms"]) for request in replica.requests]
    assert len(told) == 3
    assert 50_000 < told[0] <= 60_000
    assert told[1] == 0
