"""Prompts that one replica prefills and another goes on from."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from client import Client, chat
from running import InProcess, base_config

from loadtest.replica import FakeReplica
from proxy.transfer import prefill_body

LONG = "where does a river begin? " * 100


def document(prefill: str, decode: str, log: Path, **routing: Any) -> dict[str, Any]:
    made = base_config([prefill, decode], routing=routing, log={"access": str(log)})
    made["replicas"][0]["role"] = "prefill"
    made["replicas"][1] |= {"role": "decode", "weight": 0.1}
    return made


@pytest.mark.parametrize("stream", [True, False])
async def test_two_legs_and_one_answer(tmp_path: Path, stream: bool) -> None:
    log = tmp_path / "log"
    async with (
        FakeReplica(prefill_tokens_per_s=20_000) as prefill,
        FakeReplica(prefill_tokens_per_s=100) as decode,
        InProcess(document(prefill.url, decode.url, log), tmp_path) as gateway,
    ):
        client = await Client.open(gateway.port)
        answer = await client.ask(chat(LONG, stream=stream, max_tokens=5, min_tokens=2, n=1))
        client.close()
        members = [
            member
            for fleet in gateway.worker._replicas.router._models.values()
            for member in fleet.members
        ]
        accounts = [
            (m.account.pending_tokens, m.account.in_flight, m.account.live_tokens) for m in members
        ]
        assert gateway.metric("headrace_ledger_underflow_total") == 0
        used = gateway.metric("headrace_prefill_legs_total", "used")
    assert answer.status == 200
    assert answer.complete
    assert used == 1
    assert len(members) == 2
    assert accounts == [(0, 0, 0)] * 2
    (first,), (second,) = prefill.requests, decode.requests
    assert first.headers["x-request-id"] == second.headers["x-request-id"]
    params = second.body.pop("kv_transfer_params")
    assert params["remote_block_ids"]
    assert json.loads(prefill_body(json.dumps(second.body).encode())) == first.body
    assert first.sent_tokens == 1
    assert second.sent_tokens == 5
    (record,) = [json.loads(line) for line in log.read_text().splitlines()]
    assert (record["replica"], record["prefill_replica"]) == ("r1", "r0")
    assert record.get("cached_tokens", 0) == 0  # fetched is not saved


async def test_a_short_prompt_is_prefilled_where_it_is_answered(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with (
        FakeReplica() as prefill,
        FakeReplica() as decode,
        InProcess(document(prefill.url, decode.url, log), tmp_path) as gateway,
    ):
        client = await Client.open(gateway.port)
        answer = await client.ask(chat("hello"))
        client.close()
        assert gateway.metric("headrace_prefill_legs_total", "cached") == 1
    assert answer.status == 200
    assert not prefill.requests


@pytest.mark.parametrize("fault", ["status=500", "reset_before_head", "status=400", "refuse"])
async def test_when_a_prefill_fails_it_is_done_where_it_is_answered(
    tmp_path: Path, fault: str
) -> None:
    log = tmp_path / "log"
    async with (
        FakeReplica(behaviour=fault) as prefill,
        FakeReplica() as decode,
        InProcess(
            document(prefill.url, decode.url, log, disaggregation={"least_tokens": 0}), tmp_path
        ) as gateway,
    ):
        client = await Client.open(gateway.port)
        answer = await client.ask(chat(LONG, max_tokens=3))
        client.close()
        failed = gateway.metric("headrace_prefill_legs_total", "failed")
        unavailable = gateway.metric("headrace_prefill_legs_total", "unavailable")
        assert failed + unavailable == 1
        assert gateway.metric("headrace_ledger_underflow_total") == 0
    assert (answer.status, answer.complete) == (200, True)
    assert "kv_transfer_params" not in decode.requests[0].body


async def test_a_client_that_leaves_ends_the_leg_that_prefills(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with (
        FakeReplica(prefill_base_ms=60_000) as prefill,
        FakeReplica() as decode,
        InProcess(document(prefill.url, decode.url, log), tmp_path) as gateway,
    ):
        client = await Client.open(gateway.port)
        client.send(chat(LONG))
        while not prefill.requests:
            await asyncio.sleep(0.01)
        client.close()
        (leg,) = prefill.requests
        while leg.outcome == "in_flight":
            await asyncio.sleep(0.01)
        assert leg.outcome == "aborted"
        for fleet in gateway.worker._replicas.router._models.values():
            assert [member.account.in_flight for member in fleet.members] == [0]
    assert not decode.requests
