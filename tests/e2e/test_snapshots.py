"""Two workers change their configuration under load: nothing breaks, nothing stays behind."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from typing import Any

import pytest
import yaml
from client import chat
from prometheus_client.parser import text_string_to_metric_families
from running import Caller, Identity, Process, admin, eventually

from loadtest.replica import FakeReplica

pytestmark = pytest.mark.asyncio(loop_scope="module")

EXCHANGES = 1000
RELOADS = 12


async def samples(gateway: Process) -> dict[str, dict[tuple[str, ...], float]]:
    """Family -> label values -> value."""
    page = (await admin(gateway, "/metrics")).body.decode()
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


async def reload(gateway: Process, **sections: Any) -> None:
    before = (await admin(gateway, "/config")).json()["generation"]
    document = {**gateway.document, **sections}
    (gateway.folder / "headrace.yaml").write_text(yaml.safe_dump(document))

    async def taken() -> bool:
        page = (await admin(gateway, "/config")).json()
        applied: bool = page["last_reload"]["result"] == "applied"
        return applied and page["generation"] == before + 1

    gateway.signal(signal.SIGHUP)
    await eventually(taken)


async def test_a_thousand_exchanges_amid_reloads(identity: Identity) -> None:
    async with FakeReplica() as one, FakeReplica() as two:
        urls = [one.url, two.url]
        document = identity.config(urls, workers=2, reload={"watch": False})
        with Process(document) as gateway:
            caller = Caller(gateway, identity)
            statuses: Counter[int] = Counter()
            reloaded = asyncio.Event()

            async def keep_asking() -> None:
                client = await caller.open()
                while not reloaded.is_set() or statuses.total() < EXCHANGES:
                    text = f"question {statuses.total() % 50}"
                    caller.send(client, chat(text, max_tokens=8))
                    answer = await client.answer()
                    assert answer.complete
                    statuses[answer.status] += 1
                client.close()

            def replica(number: int, replica_id: str) -> Any:
                return {"url": urls[number], "model": "demo", "id": replica_id}

            asking = [asyncio.ensure_future(keep_asking()) for _ in range(8)]
            for number in range(RELOADS):
                await reload(
                    gateway,
                    replicas=[replica(0, "r0"), replica(number % 2, f"pod-{number}")],
                    limits={"rules": [{"name": f"rule-{number % 2}", "limit": 10**6}]},
                    routing={"block_tokens": 64 + 64 * (number % 2)},
                )
            reloaded.set()
            await asyncio.gather(*asking)
            assert set(statuses) == {200}

            async def quiet() -> bool:
                found = await samples(gateway)  # published once a second
                held = [set(found[name].values()) for name in _LEDGER]
                return found["headrace_snapshots_open"][()] == 2 and set().union(*held) == {0.0}

            await eventually(quiet)

            async def forgotten() -> bool:
                found = await samples(gateway)
                shown = {labels[0] for name in _BY_REPLICA for labels in found.get(name, {})}
                return shown == {"r0", f"pod-{RELOADS - 1}"}

            await eventually(forgotten)
            found = await samples(gateway)
            generations = found["headrace_config_generation"]
            assert generations == {("0",): RELOADS + 1, ("1",): RELOADS + 1}
            assert found["headrace_ledger_underflow_total"][()] == 0
            assert gateway.stop() == 0


_LEDGER = (
    "headrace_replica_inflight",
    "headrace_replica_pending_prefill_tokens",
    "headrace_replica_live_kv_tokens",
)
_BY_REPLICA = (*_LEDGER, "headrace_upstream_connections", "headrace_replica_healthy")
