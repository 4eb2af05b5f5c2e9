"""Credentials over real HTTP: each way in, what is refused, and what the log says of it."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from client import Answer, ask
from running import InProcess, base_config

from auth.api_key import digest_of, make_key
from loadtest.replica import FakeReplica


class Key:
    """A new API key and its entry."""

    def __init__(self, **entry: Any) -> None:
        self.text = make_key(os.urandom(32))
        self.entry = {"sha256": digest_of(self.text.encode()).hex(), "tenant": "acme"} | entry


@pytest.fixture
async def replica() -> AsyncIterator[FakeReplica]:
    async with FakeReplica() as running:
        yield running


async def models(gateway: InProcess, **headers: str) -> Answer:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return await ask(gateway.port, b"", path="/v1/models", method="GET", headers=sent)


async def test_a_key_file_is_a_way_in_and_its_change_another(
    replica: FakeReplica, tmp_path: Path
) -> None:
    first, second = Key(id="first"), Key(id="second")
    keys, log = tmp_path / "keys.yaml", tmp_path / "access.jsonl"
    keys.write_text(yaml.safe_dump({"keys": [first.entry]}))
    document = base_config(
        [replica.url], auth={"api_keys": {"file": "keys.yaml"}}, log={"access": str(log)}
    )
    async with InProcess(document, tmp_path) as gateway:
        assert (await models(gateway, authorization=f"Bearer {first.text}")).status == 200
        assert (await models(gateway, x_api_key=first.text)).status == 200
        assert (await models(gateway, x_api_key=second.text)).status == 401
        keys.write_text(yaml.safe_dump({"keys": [second.entry]}))
        path = tmp_path / "headrace.yaml"
        await gateway.worker.stage(path.read_bytes(), str(path))
        gateway.worker.commit()
        assert (await models(gateway, x_api_key=second.text)).status == 200
        refused = await models(gateway, x_api_key=first.text)
    assert refused.status == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    assert refused.json()["error"]["code"] == "invalid_api_key"
    written = log.read_text()
    lines = [json.loads(line) for line in written.splitlines()]
    assert [line.get("key") for line in lines] == ["first", "first", None, "second", None]
    assert [line.get("auth_fault") for line in lines][2:] == [
        "unknown API key",
        None,
        "unknown API key",
    ]
    assert first.text not in written
    assert second.text not in written
