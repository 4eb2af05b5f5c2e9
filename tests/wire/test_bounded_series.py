"""What clients name (models, tenants, users, paths) makes no series: figures stay as many."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from client import Client, ask, chat
from ports import free_port
from running import Identity, InProcess

from loadtest.replica import FakeReplica
from proxy.serve.page.view import View

NAMES = 250
"""More than a family may have series, where its labels are not bounded otherwise."""


async def name_many(gateway: InProcess, identity: Identity, numbers: range) -> None:
    """As many tenants and users, models that there are not, aliases, paths, tiers and ids."""
    client = await Client.open(gateway.port)
    for n in numbers:
        token = identity.issuer.token(f"tenant-{n}", plan=f"plan-{n}")
        headers = {"Authorization": f"Bearer {token}", "X-Headrace-Tier": f"tier-{n}"}
        headers |= {"User-Agent": f"agent-{n}", "X-Request-Id": f"id-{n}"}
        good = chat(f"{n}", max_tokens=1, stream=False, user=f"user-{n}")
        assert (await client.ask(good, headers=headers)).status == 200
        for document, path in (
            (chat(model=f"model-{n}"), "/v1/chat/completions"),
            (chat(), f"/v1/path-{n}"),
        ):
            answer = await client.ask(document, path=path, headers=headers)
            assert answer.status == 404
    client.close()


async def test_what_clients_name_adds_no_series(tmp_path: Path) -> None:
    identity = Identity(tmp_path)
    async with FakeReplica() as replica:
        document = identity.config(
            [replica.url],
            admin={"address": f"127.0.0.1:{free_port()}"},
            budgets={"default": "chat", "client_header": True},
            limits={"rules": [{"name": "r", "limit": 10**9, "per": ["tenant", "model"]}]},
        )
        document["listen"]["tls"] = "off"
        async with InProcess(document, tmp_path) as gateway:

            async def page() -> tuple[set[str], int]:
                """The series, and the bytes of what the live page is told."""
                await asyncio.sleep(0.1)  # at most so much later are phases counted
                answer = await ask(gateway.admin_port, b"", method="GET", path="/metrics")
                lines = answer.body.decode().splitlines()
                view = View().take(gateway.worker.metrics.board.collect(), 1.0, None)
                return {line.rpartition(" ")[0] for line in lines}, len(json.dumps(view))

            await name_many(gateway, identity, range(10))
            before, told = await page()
            await name_many(gateway, identity, range(10, NAMES))
            after, told_later = await page()
            recent = gateway.prepared.shared.recent
            kept = recent.read(recent.places)
    new = {line for line in after - before if any(f"-{n}" in line for n in range(10, NAMES))}
    assert new == set()
    assert len(after) <= len(before) + 10  # ours, which came late
    assert told_later <= told + 200
    assert len(kept) <= 64
