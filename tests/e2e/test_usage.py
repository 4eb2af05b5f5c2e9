"""Usage records end to end: in a file and a stream, and after the death of a worker."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import redis
import yaml
from client import chat
from running import Caller, Identity, Process, eventually, metric

from loadtest.replica import FakeReplica

SHORT = chat(max_tokens=4)
ROOM = {"name": "room", "limit": 1, "burst": 8, "unit": "requests"}
PRICES = {"demo": {"input": 1, "output": 2}}


def limits(**more: Any) -> dict[str, Any]:
    return {"rules": [ROOM], "prices": PRICES, **more}


async def test_a_worker_that_is_killed_loses_a_second_at_most(
    identity: Identity, replicas: list[FakeReplica], tmp_path: Path
) -> None:
    path = tmp_path / "usage.jsonl"
    document = identity.config(
        [replica.url for replica in replicas], usage={"file": str(path)}, workers=2
    )
    with Process(document) as gateway:
        caller = Caller(gateway, identity)
        answers = await asyncio.gather(*[caller.ask(SHORT) for _ in range(60)])
        wanted = {answer.headers["x-request-id"] for answer in answers}
        await asyncio.sleep(1.0)  # what is older than this must be there
        late = await asyncio.gather(*[caller.ask(SHORT) for _ in range(20)])
        for pid in gateway.workers:
            os.kill(pid, signal.SIGKILL)
        lines = path.read_bytes().splitlines(keepends=True)
        assert all(line.endswith(b"\n") for line in lines)
        records = [json.loads(line) for line in lines]
        ids = [record["request_id"] for record in records]
        assert len(ids) == len(set(ids))
        assert wanted <= set(ids) <= wanted | {answer.headers["x-request-id"] for answer in late}
        assert {record["tenant"] for record in records} == {"acme"}
        assert {record["user"] for record in records} == {"acme-user"}


async def test_each_exchange_that_was_charged_is_in_the_stream(
    identity: Identity, replicas: list[FakeReplica], valkey: Any
) -> None:
    """Also one whose client left; not one that was refused. A stop loses nothing."""
    store = {"redis": {"url": valkey.url, "deadline_s": 1.0}}
    document = identity.config(
        [replica.url for replica in replicas],
        limits=limits(store=store),
        usage={"redis_stream": "headrace:usage"},
    )
    with Process(document) as gateway:
        caller = Caller(gateway, identity)
        leaving = await caller.open()
        caller.send(leaving, chat(user="fake:stall_mid=1"))
        await leaving.reader.readuntil(b"data: ")
        leaving.close()
        answers = [await caller.ask(SHORT) for _ in range(12)]
        assert [answer.status for answer in answers].count(200) == 7
        assert await metric(gateway, "headrace_usage_dropped_total") == 0
        await asyncio.to_thread(gateway.stop)  # at once after the last answer
        with redis.Redis(unix_socket_path=valkey.socket_path) as client:
            entries = client.xrange("headrace:usage")
        records = [json.loads(fields[b"usage"]) for _, fields in entries]
        assert sorted(record["reason"] for record in records) == ["client_gone"] + ["ok"] * 7
        for record in records:
            prompt, output = record["prompt_tokens"], record["completion_tokens"]
            assert record["model"] == "demo"
            assert record["cost_units"] == (prompt * 1 + output * 2) / 1000
            assert record["replica"] in ("r0", "r1")
            assert record["duration_ms"] > 0
        assert [record.get("estimated") for record in records].count(True) == 1


async def test_usage_goes_elsewhere_after_a_reload(
    identity: Identity, replicas: list[FakeReplica], tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    urls = [replica.url for replica in replicas]
    with Process(identity.config(urls, usage={"file": str(one)})) as gateway:
        caller = Caller(gateway, identity)
        first = (await caller.ask(SHORT)).headers["x-request-id"]
        document = {**gateway.document, "usage": {"file": str(two)}}
        (gateway.folder / "headrace.yaml").write_text(yaml.safe_dump(document))
        gateway.signal(signal.SIGHUP)

        async def moved() -> bool:
            return two.exists()

        await eventually(moved)
        second = ""

        async def used() -> bool:
            nonlocal second
            second = (await caller.ask(SHORT)).headers["x-request-id"]
            await asyncio.sleep(0.3)
            return second in two.read_text()

        await eventually(used)
        assert first in one.read_text()
        assert second not in one.read_text()
