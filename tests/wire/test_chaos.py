"""Replicas that half work, with retries, hedges, heartbeats and circuits all at once: whatever
happens, each answer is whole or says that it is not, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
from client import Answer, Client, ask
from running import InProcess, base_config, eventually

from loadtest.replica import FakeReplica

ASK = [{"role": "user", "content": "What is a headrace?"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": ASK, "max_tokens": 8},
    "/v1/completions": {"prompt": "A headrace is", "max_tokens": 8},
    "/v1/messages": {"messages": ASK, "max_tokens": 8},
    "/v1/responses": {"input": "What is a headrace?", "max_output_tokens": 8},
}
ENDS = {
    "/v1/chat/completions": b"data: [DONE]\n\n",
    "/v1/completions": b"data: [DONE]\n\n",
    "/v1/messages": b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    "/v1/responses": b'"type":"response.completed"}\n\n',
}
WAYS = [
    *[""] * 4,
    *("one_byte", "split=7", "keep_alive=0.01,prefill_ms=60", "prefill_ms=150", "slow_head=0.1"),
    *("one_byte,error_first=503", "one_byte,kill_mid=3,token_ms=2", "split=3,error_first=400"),
    *("status=503", "status=502", "status=500", "status=429", "status=400"),
    *("error_first=503", "error_first=500", "error_first=429", "error_mid", "no_done"),
    *("kill_mid=3,token_ms=2", "truncate=2", "garbage", "garbage_mid", "reset_before_head"),
    *("empty", "head_only", "stall_first", "stall_mid=2", "header_bomb", "interim_flood"),
]
STATUSES = {200, 400, 429, 500, 502, 503, 504}


def config(replicas: list[FakeReplica], access_path: Path) -> dict[str, Any]:
    return base_config(
        [replica.url for replica in replicas],
        log={"access": str(access_path)},
        upstream={
            "timeouts": {"first_token_s": 0.4, "response_s": 1.0, "idle_s": 0.4},
            "hedge": {"after_s": 0.05, "budget_ratio": 1.0},
            "heartbeats": {"interval_s": 0.2},
            "retries": {"budget_floor": 1000},
            "health": {"interval_s": 0.1, "backoff_s": 0.05, "max_backoff_s": 0.2},
        },
    )


def check(path: str, stream: bool, answer: Answer) -> None:
    assert answer.status in STATUSES
    if answer.status != 200:
        assert answer.complete
        assert answer.json()["error"]["message"]
    elif not stream:
        assert answer.complete is answer.body.endswith(b"}")
    elif answer.complete and b"EngineCore" not in answer.body:  # the replica's own last words
        assert answer.body.count(ENDS[path]) == 1
        assert answer.body.endswith(ENDS[path])
    elif not answer.complete:
        assert ENDS[path] not in answer.body
        last = answer.body.rstrip().rpartition(b"data: ")[2]
        assert json.loads(last)["error"]["message"], "the last word is an error"


async def one(gateway: InProcess, luck: random.Random) -> str | None:
    """The id of an answer that was read to its end."""
    path, stream = luck.choice(list(BODIES)), luck.random() < 0.7
    body = {"model": "demo", **BODIES[path], "stream": stream}
    client = await Client.open(gateway.port)
    try:
        client.send(body, path=path)
        if luck.random() < 0.15:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(client.reader.read(300), luck.random() * 0.2)
            client.reset()
            return None
        answer = await client.answer()
    finally:
        client.close()
    check(path, stream, answer)
    return answer.headers["x-request-id"]


@pytest.mark.parametrize("seed", range(2))
async def test_whatever_replicas_do(tmp_path: Path, seed: int) -> None:
    luck = random.Random(seed)
    access_path = tmp_path / "access.jsonl"
    async with FakeReplica() as a, FakeReplica() as b, FakeReplica() as c:
        replicas = [a, b, c]
        async with InProcess(config(replicas, access_path), tmp_path) as gateway:
            ids: list[str | None] = []
            for _ in range(12):
                for replica in replicas:
                    replica.behaviour = luck.choice(WAYS)
                ids += await asyncio.gather(*[one(gateway, luck) for _ in range(8)])
            for replica in replicas:
                replica.behaviour = ""

            async def quiet() -> bool:
                metric = gateway.metric
                busy = [metric("headrace_replica_inflight", f"r{n}") for n in range(3)]
                upstream = any(replica.in_flight for replica in replicas)
                return not (metric("headrace_exchanges_in_flight") or any(busy) or upstream)

            await eventually(quiet)
            assert gateway.metric("headrace_ledger_underflow_total") == 0

            async def logged() -> list[dict[str, Any]]:
                lines = access_path.read_text().splitlines()
                return [json.loads(line) for line in lines] if len(lines) >= len(ids) else []

            records = await eventually(logged)
            assert len(records) == len(ids)
            told = {record["request_id"]: record for record in records}
            assert {request_id for request_id in ids if request_id} <= told.keys()
            for record in records:
                # What a client has seen nothing of costs nothing.
                assert record["status"] in (200, 499) or "settled_tokens" not in record, record

            async def well() -> bool:
                answer = await ask(gateway.port, {"model": "demo", "messages": ASK, "stream": True})
                return answer.status == 200 and answer.complete

            await eventually(well)
