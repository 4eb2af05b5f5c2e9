"""Four workers on one listening socket: who has how many connections."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from client import Client, chat
from running import Caller, Identity, Process, eventually, metric

from loadtest.replica import FakeReplica

pytestmark = pytest.mark.asyncio(loop_scope="module")
WORKERS = 4
ESTABLISHED = "01"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(identity: Identity) -> AsyncIterator[Process]:
    async with FakeReplica() as replica:
        with Process(identity.config([replica.url], workers=WORKERS)) as gateway:
            yield gateway


def connections(gateway: Process) -> dict[int, int]:
    """How many client connections each worker has, from what the kernel knows."""
    port = f"{gateway.port:04X}"
    inodes = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *rest = line.split()
        if local.endswith(f":{port}") and state == ESTABLISHED:
            inodes.add(f"socket:[{rest[5]}]")
    counts = {}
    for pid in gateway.workers:
        held = set()
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                held.add(os.readlink(f"/proc/{pid}/fd/{name}"))
        counts[pid] = len(inodes & held)
    return counts


async def all_closed(gateway: Process) -> None:
    async def none_left() -> bool:
        names = ("headrace_downstream_connections", "headrace_exchanges_in_flight")
        return [await metric(gateway, name) for name in names] == [0, 0]

    await eventually(none_left)


@pytest.mark.parametrize("together", [1, 12], ids=["one by one", "a dozen at once"])
@pytest.mark.parametrize("count", [12, 60])
async def test_long_lived_connections_are_shared_evenly(
    identity: Identity, gateway: Process, count: int, together: int
) -> None:
    caller = Caller(gateway, identity)
    clients: list[Client] = []
    for _ in range(count // together):
        clients += await asyncio.gather(*[caller.open() for _ in range(together)])
    for client in clients:
        caller.send(client, chat(max_tokens=200, user="fake:token_ms=50"))
    for client in clients:
        assert (await client.head()).status == 200
    counts = connections(gateway)
    assert sum(counts.values()) == count
    assert max(counts.values()) / (count / WORKERS) <= 1.3, counts
    for client in clients:
        client.close()
    await all_closed(gateway)


async def test_a_stopped_worker_starves_nobody(identity: Identity, gateway: Process) -> None:
    """It has the least connections when it stops, so all others would wait for it."""
    caller = Caller(gateway, identity)
    clients = [await caller.open() for _ in range(WORKERS)]
    stopped = gateway.workers[0]
    os.kill(stopped, signal.SIGSTOP)
    try:
        waits = []
        for _ in range(120):
            began_at = time.monotonic()
            client = await caller.open()
            caller.send(client, chat(max_tokens=1))
            assert (await client.answer()).complete
            waits.append(time.monotonic() - began_at)
            clients.append(client)
        counts = connections(gateway)
    finally:
        os.kill(stopped, signal.SIGCONT)
        for client in clients:
            client.close()
    assert counts.pop(stopped) == 1
    # On a slow machine the first ones, which never sent anything, are given up meanwhile.
    assert 120 <= sum(counts.values()) <= 123
    assert max(waits) < 1.0, sorted(waits)[-5:]
    assert max(counts.values()) / 41 <= 1.3, counts
    await all_closed(gateway)
