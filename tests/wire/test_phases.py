"""Where the time of exchanges went, as the log and the answers tell."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from client import Client, chat
from running import InProcess, base_config

from loadtest.replica import FakeReplica
from proxy.phases import PHASES


async def test_the_phases_of_each_exchange_sum_to_its_total(tmp_path: Path) -> None:
    log = tmp_path / "access.jsonl"
    async with FakeReplica() as one, FakeReplica(behaviour="status=503") as two:
        document = base_config([one.url, two.url], log={"access": str(log)})
        async with InProcess(document, tmp_path) as gateway:

            async def ask(number: int) -> None:
                client = await Client.open(gateway.port)
                for turn in range(5):
                    kind = {"stream": bool(turn % 2), "max_tokens": 3}
                    answer = await client.ask(chat(f"{number} {turn}", **kind))
                    assert answer.status == 200
                client.close()

            await asyncio.gather(*[ask(number) for number in range(20)])
    records = [json.loads(line) for line in log.read_bytes().splitlines()]
    assert len(records) == 100
    for record in records:
        total = record["total_ms"]
        phases = sum(record.get(phase + "_ms", 0.0) for phase in PHASES)
        assert abs(phases - total) <= 0.02 * total + 0.02  # each is cut to microseconds
        before = record["ttft_ms"] - record["first_token_ms"]
        assert 0 < before < total


async def test_an_answer_says_what_came_before_its_first_byte(tmp_path: Path) -> None:
    async with (
        FakeReplica(prefill_base_ms=30) as replica,
        InProcess(base_config([replica.url]), tmp_path) as gateway,
    ):
        client = await Client.open(gateway.port)
        unasked = await client.ask(chat(max_tokens=3))
        answer = await client.ask(chat(max_tokens=3), headers={"X-Headrace-Timing": "1"})
        full = await client.ask(chat(max_tokens=3), headers={"X-Headrace-Timing": "full"})
        client.close()
    assert "server-timing" not in unasked.headers
    last = full.body.rsplit(b"\n\n", 2)[-2].decode()
    assert last.startswith(": server-timing head;dur=")
    assert "relay;dur=" in last
    assert full.text == answer.text == unasked.text
    parts = dict(part.split(";dur=") for part in answer.headers["server-timing"].split(", "))
    assert list(parts) == [p for p in PHASES if p in parts]
    assert {"head", "gate", "auth", "tokenize", "route", "first_token"} <= parts.keys()
    assert "relay" not in parts
    assert float(parts["first_token"]) >= 30
