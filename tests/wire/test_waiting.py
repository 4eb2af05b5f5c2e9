"""Requests that wait for a replica with room, from end to end."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from client import Client, chat
from running import InProcess, base_config

from loadtest.replica import FakeReplica


def document(url: str, log: Path, **admission: Any) -> dict[str, Any]:
    made = base_config([url], routing={"admission": admission}, log={"access": str(log)})
    made["replicas"][0]["max_in_flight"] = 1
    return made


async def test_a_request_waits_for_its_turn_and_the_log_says_how_long(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with (
        FakeReplica(prefill_base_ms=60) as replica,
        InProcess(document(replica.url, log), tmp_path) as gateway,
    ):
        clients = [await Client.open(gateway.port) for _ in range(3)]
        answers = await asyncio.gather(*[client.ask(chat(max_tokens=2)) for client in clients])
        for client in clients:
            client.close()
        assert [(answer.status, answer.complete) for answer in answers] == [(200, True)] * 3
        assert gateway.metric("headrace_queue_wait_seconds") == 2
    waits = sorted(json.loads(line).get("queue_ms", 0.0) for line in log.read_text().splitlines())
    assert waits[0] == 0.0
    assert waits[1] >= 30
    assert waits[2] >= 90


async def test_who_waited_for_nothing_is_told_when_to_come_back(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with (
        FakeReplica(behaviour="stall_first") as replica,
        InProcess(document(replica.url, log, deadline_s=0.2), tmp_path) as gateway,
    ):
        busy, late, gone = [await Client.open(gateway.port) for _ in range(3)]
        busy.send(chat())
        await asyncio.sleep(0.05)
        gone.send(chat())
        await asyncio.sleep(0.05)
        assert len(gateway.worker._replicas.router.queues["demo"]) == 1
        gone.close()
        answer = await late.ask(chat())
        late.close()
        busy.close()
        assert answer.status == 503
        assert answer.json()["error"]["code"] == "saturated"
        assert answer.headers["retry-after"] == "1"
        assert gateway.metric("headrace_queue_shed_total", "saturated") == 1
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    records = {record["status"]: record for record in lines}
    assert records[503]["reason"] == "saturated"
    assert records[503]["phase"] == "queue"
    assert records[503]["queue_ms"] >= 150
    assert records[499]["reason"] == "client_gone"


async def test_draining_lets_those_who_wait_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with FakeReplica(prefill_base_ms=80) as replica:
        async with InProcess(document(replica.url, log), tmp_path) as gateway:
            clients = [await Client.open(gateway.port) for _ in range(3)]
            for client in clients:
                client.send(chat(max_tokens=2))
            while not gateway.worker._replicas.router.queues:
                await asyncio.sleep(0.01)
        answers = [await client.answer() for client in clients]
        for client in clients:
            client.close()
    assert [(answer.status, answer.complete) for answer in answers] == [(200, True)] * 3


async def test_a_reload_loses_nobody_who_waits(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with FakeReplica(prefill_base_ms=150) as replica:
        made = document(replica.url, log)
        async with InProcess(made, tmp_path) as gateway:
            clients = [await Client.open(gateway.port) for _ in range(3)]
            for client in clients:
                client.send(chat(max_tokens=2))
            while not gateway.worker._replicas.router.queues:
                await asyncio.sleep(0.01)
            made["routing"] = {"admission": {"deadline_s": 20, "weights": {"a": 2}}}
            made["models"].append({"name": "more", "adapter_of": "demo"})
            await gateway.worker.stage(json.dumps(made).encode(), str(tmp_path / "headrace.yaml"))
            gateway.worker.commit()
            answers = [await client.answer() for client in clients]
            for client in clients:
                client.close()
    assert [(answer.status, answer.complete) for answer in answers] == [(200, True)] * 3


async def test_an_adapter_is_served_by_its_models_replicas_under_its_own_name(
    tmp_path: Path,
) -> None:
    async with FakeReplica(adapters=("sql",)) as replica:
        made = base_config([replica.url])
        made["models"].append({"name": "sql", "aliases": ["sql-lora"], "adapter_of": "demo"})
        async with InProcess(made, tmp_path) as gateway:
            client = await Client.open(gateway.port)
            answers = [await client.ask(chat(model=name)) for name in ("demo", "sql-lora")]
            listed = await client.ask(b"", path="/v1/models", method="GET")
            client.close()
        assert [answer.status for answer in answers] == [200, 200]
        asked = [record.body["model"] for record in replica.requests]
    assert asked == ["demo", "sql"]
    assert {card["id"] for card in listed.json()["data"]} == {"demo", "sql", "sql-lora"}
