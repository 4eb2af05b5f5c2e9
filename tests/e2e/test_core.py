"""Two workers and their core: what one sends where, the other knows, whoever is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import yaml
from client import Client, chat
from running import Process, base_config, eventually, metric

from loadtest.replica import FakeReplica

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT = 2


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Process]:
    async with FakeReplica() as one, FakeReplica() as two:
        document = base_config(
            [one.url, two.url], workers=2, routing={"admission": {"max_waiting": 0}}
        )
        for replica in document["replicas"]:
            replica["max_in_flight"] = LIMIT
        with Process(document) as gateway:
            yield gateway


def story(name: str, lines: int = 60) -> str:
    return f"A long story about {name} that is told again and again. " * lines


async def client_of(gateway: Process, worker: int) -> Client:
    """A connection that the worker of this pid has accepted: the other one was stopped."""
    others = [pid for pid in gateway.workers if pid != worker]
    for pid in others:
        os.kill(pid, signal.SIGSTOP)
    try:
        client = await Client.open(gateway.port)
        assert (await client.ask(b"", method="GET", path="/healthz")).status == 200
        return client
    finally:
        for pid in others:
            os.kill(pid, signal.SIGCONT)


async def cached(client: Client, text: str) -> int:
    """How many tokens of the prompt the replica found that was chosen for it."""
    answer = await client.ask(chat(text, stream=False, max_tokens=1))
    assert answer.status == 200, answer.body
    usage: dict[str, Any] = answer.json()["usage"]
    return int((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))


async def begin(client: Client, text: str, behaviour: str) -> None:
    client.send(chat(text, max_tokens=500, user=f"fake:{behaviour}"))


async def known(gateway: Process, blocks: int) -> None:
    """Until the core has heard of so many, which takes it longer where it gets no time."""

    async def enough() -> bool:
        return await metric(gateway, "headrace_index_entries") >= blocks

    await eventually(enough)


async def waits_for_first_token(gateway: Process, count: int) -> None:
    async def same() -> bool:
        return await metric(gateway, "headrace_index_pending_prompts") == count

    await eventually(same)


async def in_flight(gateway: Process, count: int) -> None:
    async def same() -> bool:
        names = [
            await metric(gateway, "headrace_replica_inflight", replica=r) for r in ("r0", "r1")
        ]
        return sum(names) == count

    await eventually(same)


async def test_what_one_worker_sent_the_other_finds(gateway: Process) -> None:
    await eventually(lambda: two_workers(gateway))
    one, two = [await client_of(gateway, pid) for pid in gateway.workers]
    for number in range(4):
        text = story(f"water {number}")
        assert await cached(one, text) == 0
        await known(gateway, 12 * (number + 1))
        assert await cached(two, text) > 500
    for client in (one, two):
        client.close()


async def test_limits_hold_over_both_workers_and_end_with_a_dead_one(gateway: Process) -> None:
    victim, survivor = gateway.workers
    long = [await client_of(gateway, victim) for _ in range(2 * LIMIT)]
    other = await client_of(gateway, survivor)
    for client in long:
        await begin(client, story("fire"), "tokens=2000,token_ms=50")
        assert (await client.head()).status == 200
    refused = await other.ask(chat("one too many"))
    assert (refused.status, refused.json()["error"]["code"]) == (503, "replicas_full")
    os.kill(victim, signal.SIGKILL)
    for client in long:
        client.close()

    async def served() -> bool:
        return (await other.ask(chat("now", max_tokens=1))).status == 200

    await eventually(served)
    other.close()
    await eventually(lambda: two_workers(gateway))
    await in_flight(gateway, 0)


async def two_workers(gateway: Process) -> bool:
    return len(gateway.workers) == 2


async def test_a_killed_core_comes_back_and_knows_what_it_knew(gateway: Process) -> None:
    await eventually(lambda: two_workers(gateway))
    one, two = [await client_of(gateway, pid) for pid in gateway.workers]
    before = await metric(gateway, "headrace_index_entries")
    assert await cached(one, story("wind")) == 0
    await known(gateway, int(before) + 12)
    await begin(one, story("ice", 12), "stall_first=30")  # short: a queue nobody need avoid
    await waits_for_first_token(gateway, 1)
    core = gateway.core
    os.kill(core, signal.SIGKILL)
    assert await cached(two, story("wind")) > 500  # whether or not there is a core

    async def not_degraded() -> bool:
        return await metric(gateway, "headrace_degraded", worker="0") == 0

    async def back() -> bool:
        return gateway.core not in (0, core)

    await eventually(back)
    await waits_for_first_token(gateway, 1)
    assert await cached(two, story("wind")) > 500
    await eventually(not_degraded)

    # And of a worker that is killed now nothing stays on its way.
    os.kill(gateway.workers[0], signal.SIGKILL)
    os.kill(gateway.workers[-1], 0)
    await waits_for_first_token(gateway, 0)
    for client in (one, two):
        client.close()


async def test_the_core_follows_replicas_for_all_workers_and_takes_other_ones(
    gateway: Process,
) -> None:
    async with FakeReplica(kv_events="maps") as teller, FakeReplica(kv_events="maps") as other:
        replicas = [
            {"url": one.url, "model": "demo", "id": f"kv{n}"}
            for n, one in enumerate((teller, other))
        ]
        rewrite(gateway, {**gateway.document, "replicas": replicas})
        gateway.signal(signal.SIGHUP)

        async def exact() -> bool:
            label = {"replica": "kv0", "state": "exact"}
            return await metric(gateway, "headrace_replica_kv_state", **label) == 1

        await eventually(exact)  # in the core alone
        await eventually(lambda: two_workers(gateway))
        one, two = [await client_of(gateway, pid) for pid in gateway.workers]
        before = await metric(gateway, "headrace_index_entries")
        assert await cached(one, story("earth")) == 0
        await known(gateway, int(before) + 12)
        assert await cached(two, story("earth")) > 500
        for client in (one, two):
            client.close()


def rewrite(gateway: Process, document: Any) -> None:
    path = gateway.folder / "headrace.yaml"
    partial = path.with_suffix(".part")
    partial.write_text(yaml.safe_dump(document))
    os.replace(partial, path)
