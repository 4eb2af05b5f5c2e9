"""Prompts that replicas are given as token ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from client import ask, chat
from running import InProcess, base_config, eventually

from loadtest.replica import FakeReplica

HANDED = "headrace_prompts_handed_over_total"


async def known(gateway: InProcess) -> None:
    async def all_known() -> bool:
        tokens = gateway.worker._replicas.tokens
        return all(tokens.accepted(name) for name in ("r0", "r1"))

    await eventually(all_known)


@pytest.mark.parametrize("stream", [True, False])
async def test_each_replica_gets_what_it_takes(tmp_path: Path, stream: bool) -> None:
    upstream: dict[str, Any] = {"token_ids": "auto"}
    async with FakeReplica() as one, FakeReplica(behaviour="ignore_token_ids") as two:
        document = base_config([one.url, two.url], upstream=upstream)
        async with InProcess(document, tmp_path) as gateway:
            await known(gateway)
            asked = {replica: len(replica.requests) for replica in (one, two)}
            texts = set()
            for _ in range(6):
                question = chat("Where does a river begin?", stream=stream, max_tokens=5, seed=3)
                answer = await ask(gateway.port, {**question, "return_token_ids": True})
                assert answer.complete
                texts.add(answer.text)
            completion = {"model": "demo", "prompt": "A river", "max_tokens": 3}
            answer = await ask(gateway.port, completion, path="/v1/completions")
            assert answer.status == 200
            assert gateway.metric(HANDED, "/v1/completions") == 1
            chats = {r: [*r.requests][asked[r] :] for r in (one, two)}
            given = {
                r: [q.body for q in chats[r] if q.body.get("kv_transfer_params")] for r in chats
            }
    assert len(texts) == 1
    assert all(body["kv_transfer_params"]["prompt_token_ids"] for body in given[one])
    assert len(given[one]) == sum("messages" in q.body for q in chats[one])
    assert given[two] == []


async def test_it_is_off_unless_it_is_asked_for(tmp_path: Path) -> None:
    async with FakeReplica() as replica:
        async with InProcess(base_config([replica.url]), tmp_path) as gateway:
            assert (await ask(gateway.port, chat("hello", max_tokens=3))).status == 200
            assert gateway.worker._replicas.tokens.accepted("r0") is None
        assert len(replica.requests) == 1
        assert "kv_transfer_params" not in replica.requests[0].body
