"""Signing keys fetched over HTTPS: rotation at once, and no flood of fetches."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from key_host import KeyHost
from running import Caller, Identity, Process, admin, eventually

from loadtest.replica import FakeReplica

COOL_DOWN_S = 1.0
BURST = 3


@pytest.fixture
def identity(tmp_path: Path) -> Identity:
    """One whose keys a test may change."""
    return Identity(tmp_path)


@pytest.fixture
async def host(identity: Identity) -> AsyncIterator[KeyHost]:
    host = KeyHost(identity)
    await host.start()
    yield host
    await host.stop()


def config(
    identity: Identity, host: KeyHost, replicas: list[FakeReplica], **sections: Any
) -> dict[str, Any]:
    document = identity.config([replica.url for replica in replicas], **sections)
    document["auth"]["throttle"] = {"failures_per_minute": None}
    document["auth"]["issuers"][0]["jwks"] = {
        "url": host.url,
        "ca": str(identity.files.authority),
        "cool_down_s": COOL_DOWN_S,
    }
    return document


async def ready(gateway: Process) -> None:
    async def is_ready() -> bool:
        return (await admin(gateway, "/readyz")).status == 200

    await eventually(is_ready)


def invented(token: str, kid: str) -> str:
    """The token with another key id; its signature is not looked at."""
    _, claims, signature = token.split(".")
    header = json.dumps({"alg": "RS256", "kid": kid}).encode()
    return f"{base64.urlsafe_b64encode(header).rstrip(b'=').decode()}.{claims}.{signature}"


@pytest.mark.parametrize("workers", [1, 2])
async def test_new_keys_are_known_at_once_and_unknown_ones_cost_few_fetches(
    identity: Identity, host: KeyHost, replicas: list[FakeReplica], workers: int
) -> None:
    """Fetches are counted for the whole host, however many workers it has."""
    started_at = time.monotonic()

    def allowed() -> float:
        return BURST + (time.monotonic() - started_at) / COOL_DOWN_S

    with Process(config(identity, host, replicas, workers=workers)) as gateway:
        await ready(gateway)
        first = Caller(gateway, identity)
        assert (await first.models()).status == 200
        assert host.fetches == 1
        identity.issuer.rotate()
        second = Caller(gateway, identity)
        answers = await asyncio.gather(*[second.models() for _ in range(20)])
        assert {answer.status for answer in answers} == {200}
        assert host.fetches <= 1 + workers  # for all of them
        statuses: list[int] = []

        async def flood(lane: int) -> None:
            client = await first.open()
            for number in range(50):
                token = invented(first.token, f"kid-{lane}-{number}")
                headers = {"Authorization": f"Bearer {token}"}
                client.send(b"", method="GET", path="/v1/models", headers=headers)
                statuses.append((await client.answer()).status)
            client.close()

        await asyncio.gather(*[flood(lane) for lane in range(20)])
        assert statuses == [401] * 1000
        assert host.fetches <= allowed()
        # A key that is really new waits for the allowance, and then is found.
        identity.issuer.rotate()
        third = Caller(gateway, identity)

        async def let_in() -> bool:
            return (await third.models()).status == 200

        await eventually(let_in)
        assert host.fetches <= allowed()
        for caller in (first, second):  # their keys are still published
            assert (await caller.models()).status == 200


async def test_a_restart_serves_while_the_issuer_is_down(
    identity: Identity, host: KeyHost, replicas: list[FakeReplica], tmp_path: Path
) -> None:
    document = config(identity, host, replicas, workers=2)
    document["auth"]["cache_dir"] = str(tmp_path / "key-sets")
    with Process(document) as gateway:
        await ready(gateway)
        assert (await Caller(gateway, identity).models()).status == 200
    await host.stop()
    with Process(document) as gateway:
        await ready(gateway)
        caller = Caller(gateway, identity)
        answers = await asyncio.gather(*[caller.models() for _ in range(20)])
        assert {answer.status for answer in answers} == {200}
        identity.issuer.rotate()  # a key that nobody could fetch
        assert (await Caller(gateway, identity).models()).status == 401
