"""What a body may ask for, and who shares cached prefixes, over real HTTP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from client import ask, chat
from running import InProcess, base_config

from auth.api_key import digest_of, make_key
from loadtest.replica import FakeReplica


async def test_rules_hold_and_an_organisation_shares_its_cache(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("ROUTING_SECRET", "a secret" * 4)
    keys = {tenant: make_key(os.urandom(32)) for tenant in ("a1", "a2", "b1")}
    entries = [
        {
            "id": tenant,
            "sha256": digest_of(key.encode()).hex(),
            "tenant": tenant,
            "organisation": tenant[0],
        }
        for tenant, key in keys.items()
    ]
    too_much: list[dict[str, Any]] = [{"logit_bias": {}}, {"n": 2, "max_tokens": 5}]
    async with FakeReplica() as replica:
        document = base_config(
            [replica.url],
            auth={"api_keys": {"keys": entries}},
            requests={"deny_fields": ["logit_bias"], "max_output_tokens": 8},
            routing={"secret": "env:ROUTING_SECRET", "share_cache": "organisation"},
        )
        async with InProcess(document, tmp_path) as gateway:

            async def answer(tenant: str, **fields: Any) -> Any:
                body = chat("word " * 400, stream=False, **fields)
                headers = {"authorization": f"Bearer {keys[tenant]}"}
                return (await ask(gateway.port, body, headers=headers)).json()

            usage = [(await answer(tenant))["usage"] for tenant in ("a1", "a2", "b1", "b1")]
            refused = [(await answer("a1", **fields))["error"] for fields in too_much]
    cached = [used["prompt_tokens_details"]["cached_tokens"] > 0 for used in usage]
    assert cached == [False, True, False, True]
    assert {used["completion_tokens"] for used in usage} == {8}
    assert [error["param"] for error in refused] == ["logit_bias", "max_tokens"]
    assert {error["code"] for error in refused} == {"invalid_request"}
