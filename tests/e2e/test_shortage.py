"""Too few file descriptors: at the start, and while it serves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from client import Answer, Client, ask, chat
from running import NEVER_TOO_BUSY, ROOT, Process, base_config, eventually, metric

from loadtest.replica import FakeReplica

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("limit", [8, 12, 40])
def test_with_too_few_descriptors_it_says_so_and_ends(tmp_path: Path, limit: int) -> None:
    path = tmp_path / "headrace.yaml"
    path.write_text(yaml.safe_dump(base_config(["http://127.0.0.1:9"], workers=2)))
    ended = subprocess.run(
        [sys.executable, "-m", "proxy.serve", "serve", "-c", str(path)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
    )
    assert ended.returncode == 2
    [line] = ended.stderr.splitlines()
    assert line.startswith(f"headrace: this process may open {limit} files and sockets")


@contextlib.asynccontextmanager
async def serving(**overload: Any) -> AsyncIterator[Process]:
    async with FakeReplica() as replica:
        # Nothing that opens and closes descriptors by itself.
        quiet = {"active_health": False, "metrics": "off", "pool": {"warm": 0}}
        document = base_config([replica.url], upstream=quiet)
        document["replicas"][0]["kv_events"] = "off"
        document["listen"]["overload"] = {**NEVER_TOO_BUSY, **overload}
        with Process(document) as gateway:
            yield gateway


@contextlib.contextmanager
def limited(pid: int, limit: int) -> Iterator[None]:
    """That process may have so many descriptors open."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def used(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_without_descriptors_connections_wait_and_streams_go_on() -> None:
    async with serving(descriptors="off") as gateway:
        [worker] = gateway.workers
        stream = await Client.open(gateway.port)
        stream.send(chat(max_tokens=400, user="fake:token_ms=20"))
        assert (await stream.head()).status == 200
        idle = [await Client.open(gateway.port) for _ in range(5)]

        async def accepted() -> bool:
            for client in idle:
                answer = await client.ask(b"", method="GET", path="/healthz")
                assert answer.status == 200
            return True

        await eventually(accepted)
        with limited(worker, used(worker)):
            waiting = [await Client.open(gateway.port) for _ in range(30)]
            for client in waiting:
                client.send(b"", method="GET", path="/healthz")
            cpu_before_s, began_at = cpu_s(worker), time.monotonic()
            for _ in range(40):  # the stream's next tokens
                assert await stream.chunk()
            spent = (cpu_s(worker) - cpu_before_s) / (time.monotonic() - began_at)
            assert spent < 0.5  # it does not try again and again
            assert not [client for client in waiting if client.reader._buffer]  # type: ignore[attr-defined]
            for client in idle:
                client.close()
            for client in waiting[:5]:  # in the places of those that were closed
                assert (await client.answer()).status == 200
        for client in waiting[5:]:
            assert (await client.answer()).status == 200
        for client in (*waiting, stream):
            client.close()

        async def all_gone() -> bool:
            return await metric(gateway, "headrace_downstream_connections") == 0

        await eventually(all_gone)
        said = [line for line in gateway.stderr().splitlines() if b"cannot accept" in line]
        assert len(said) == 1
        assert b"Too many open files" in said[0]


async def test_too_many_descriptors_in_use_shed_load_and_recovery_ends_that() -> None:
    thresholds = {"close": 0.5, "refuse": 0.6, "pause": 0.99}
    async with serving(descriptors=thresholds) as gateway:
        [worker] = gateway.workers

        async def answer(path: str) -> Answer:
            if path == "/healthz":
                return await ask(gateway.port, b"", method="GET", path=path)
            return await ask(gateway.port, chat())

        idle = await Client.open(gateway.port)
        assert (await answer(CHAT)).status == 200
        with limited(worker, int(used(worker) / 0.8)):

            async def refused() -> bool:
                return (await answer(CHAT)).status == 503

            await eventually(refused)
            assert await idle.reader.read() == b""
            health = await answer("/healthz")
            assert (health.status, health.headers["connection"]) == (200, "close")

        async def served() -> bool:
            await asyncio.sleep(0.1)
            return (await answer(CHAT)).status == 200

        await eventually(served)
        idle.close()
        assert b"too much to do (descriptors): new requests are refused" in gateway.stderr()
