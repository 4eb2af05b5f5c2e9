"""A gateway that hears what replicas hold: client, gateway and fake replicas in one loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from client import ask
from ports import free_port
from running import InProcess, base_config, eventually

from core.kv_events import Trust
from loadtest.replica import FakeReplica
from routing.blocks import chain

BLOCK = 64


@asynccontextmanager
async def serving(
    folder: Path, number: int = 1, kv: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[InProcess, list[FakeReplica]]]:
    async with contextlib.AsyncExitStack() as stack:
        options = {"kv_events": "maps", **options}
        fakes = [await stack.enter_async_context(FakeReplica(**options)) for _ in range(number)]
        document = base_config([fake.url for fake in fakes])
        document["log"] = {"access": str(folder / "access.jsonl")}
        for replica in document["replicas"]:
            replica.update(kv or {})
        gateway = await stack.enter_async_context(InProcess(document, folder))
        yield gateway, fakes


def state(gateway: InProcess, replica: str = "r0") -> Trust:
    (found,) = [
        trust
        for trust in Trust
        if gateway.metric("headrace_replica_kv_state", replica, trust.value) == 1
    ]
    return found


async def becomes(gateway: InProcess, trust: Trust, replica: str = "r0") -> None:
    async def is_so() -> bool:
        return state(gateway, replica) is trust

    await eventually(is_so)


async def soon(condition: Callable[[], bool]) -> None:
    async def is_so() -> bool:
        return condition()

    await eventually(is_so)


def tokens(seed: int, length: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(100, 900) for _ in range(length)]


async def complete(gateway: InProcess, prompt: list[int], **fields: Any) -> None:
    document = {"model": "demo", "prompt": prompt, "max_tokens": 4, "stream": True, **fields}
    answer = await ask(gateway.port, document, path="/v1/completions")
    assert answer.status == 200


def records(folder: Path) -> list[tuple[int, int]]:
    """What was predicted and what was delivered, of each exchange."""
    path = folder / "access.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    return [(one["predicted_cached_tokens"], one["cached_tokens"]) for one in found]


def known(gateway: InProcess, prompt: list[int], replica: str = "r0", salt: str = "") -> int:
    """How many tokens of `prompt` the index believes to be there."""
    place = gateway.worker._replicas.router.place(replica)
    assert place is not None
    index, target = place
    start = gateway.prepared.prompter.start_of("demo")
    assert start is not None
    keys = chain(array("I", prompt).tobytes(), BLOCK, start(None, salt))
    return dict(index.match(keys, target.bit))[target.bit] * BLOCK


@pytest.mark.parametrize("encoding", ["maps", "arrays", "sglang"])
async def test_what_a_replica_tells_is_believed(tmp_path: Path, encoding: str) -> None:
    async with serving(tmp_path, kv_events=encoding) as (gateway, (fake,)):
        await becomes(gateway, Trust.EXACT)
        prompt = tokens(1, 200)
        await complete(gateway, tokens(2, 10))
        assert known(gateway, prompt) == 0
        fake.engine.cache.insert(prompt)
        await soon(lambda: known(gateway, prompt) == 192)
        fake.engine.cache.clear()
        await soon(lambda: known(gateway, prompt) == 0)
        assert gateway.metric("headrace_kv_events_odd_total", "r0", "unknown") == 0


async def converse(gateway: InProcess, seed: int, turns: int, shared: list[int]) -> None:
    prompt = [*shared, *tokens(seed, 150)]
    for turn in range(turns):
        await complete(gateway, prompt)
        prompt = [*prompt, *tokens(1000 * seed + turn, 90)]


async def test_what_is_predicted_is_delivered(tmp_path: Path) -> None:
    """At least 99 of 100 requests get what was predicted, and at most a block more."""
    options = {"num_blocks": 400, "prefill_tokens_per_s": 200_000.0, "token_ms": 0.5}
    async with serving(tmp_path, 4, **options) as (gateway, _):
        for number in range(4):
            await becomes(gateway, Trust.EXACT, f"r{number}")
        shared = tokens(0, 256)
        for wave in range(4):
            await asyncio.gather(
                *[converse(gateway, 1 + wave * 10 + n, 10, shared) for n in range(8)]
            )
        await soon(lambda: len(records(tmp_path)) == 320)
        found = records(tmp_path)
    good = [0 <= delivered - predicted < BLOCK for predicted, delivered in found]
    assert sum(predicted for predicted, _ in found) > 0.5 * sum(d for _, d in found) > 0
    assert sum(good) >= 0.99 * len(found)


async def test_lost_batches_are_asked_for(tmp_path: Path) -> None:
    async with serving(tmp_path) as (gateway, (fake,)):
        await becomes(gateway, Trust.EXACT)
        await complete(gateway, tokens(0, 10))
        fake.behave("kv_drop=2")
        prompts = [tokens(seed, 130) for seed in range(1, 10)]
        for prompt in prompts:
            fake.engine.cache.insert(prompt)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await soon(lambda: all(known(gateway, prompt) == 128 for prompt in prompts[:-1]))
        await becomes(gateway, Trust.EXACT)
        assert gateway.metric("headrace_kv_event_gaps_total", "r0") > 0
        assert gateway.metric("headrace_kv_cache_clears_total", "r0") == 0


async def test_what_is_lost_for_good_is_not_claimed(tmp_path: Path) -> None:
    async with serving(tmp_path) as (gateway, (fake,)):
        await becomes(gateway, Trust.EXACT)
        await complete(gateway, tokens(0, 10))
        first, lost, last = (tokens(seed, 130) for seed in range(1, 4))
        fake.engine.cache.insert(first)
        await soon(lambda: known(gateway, first) == 128)
        fake.behave("kv_lose=1")
        fake.engine.cache.insert(lost)
        await asyncio.sleep(0.01)
        fake.behave("")
        fake.engine.cache.insert(last)
        await soon(lambda: known(gateway, last) == 128)
        assert (known(gateway, first), known(gateway, lost)) == (0, 0)
        assert gateway.metric("headrace_kv_cache_clears_total", "r0") == 1


async def test_a_restart_forgets(tmp_path: Path) -> None:
    async with serving(tmp_path) as (gateway, (fake,)):
        await becomes(gateway, Trust.EXACT)
        await complete(gateway, tokens(0, 10))
        before, after = tokens(1, 130), tokens(2, 130)
        fake.engine.cache.insert(before)
        await soon(lambda: known(gateway, before) == 128)
        fake.kv.restart()
        fake.engine.cache.insert(after)
        await soon(lambda: known(gateway, after) == 128)
        assert known(gateway, before) == 0
        await becomes(gateway, Trust.EXACT)


async def test_copies_are_counted(tmp_path: Path) -> None:
    async with serving(tmp_path, behaviour="kv_twice", num_blocks=8) as (gateway, (fake,)):
        await becomes(gateway, Trust.EXACT)
        await complete(gateway, tokens(0, 10))
        one, other = tokens(1, 128), tokens(2, 64)
        fake.engine.cache.insert(one)
        await soon(lambda: known(gateway, one) == 128)
        fake.engine.cache.insert(other)
        await soon(lambda: known(gateway, other) == 64)
        assert known(gateway, one) == 64


async def test_what_was_there_before_the_gateway(tmp_path: Path) -> None:
    async with FakeReplica(kv_events="maps") as fake:
        prompt = tokens(1, 200)
        fake.engine.cache.insert(prompt)
        async with InProcess(base_config([fake.url]), tmp_path) as gateway:
            await becomes(gateway, Trust.EXACT)
            await complete(gateway, tokens(2, 10))
            await soon(lambda: known(gateway, prompt) == 192)


async def test_a_replica_that_connects_to_the_gateway(tmp_path: Path) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    kv = {"kv_events": {"endpoint": endpoint, "bind": True}}
    options = {"kv_endpoint": endpoint, "kv_connect": True, "kv_replay_endpoint": ""}
    async with serving(tmp_path, kv=kv, **options) as (gateway, (fake,)):
        await becomes(gateway, Trust.EXACT)
        await complete(gateway, tokens(0, 10))
        prompt = tokens(1, 130)
        fake.engine.cache.insert(prompt)
        await soon(lambda: known(gateway, prompt) == 128)
        fake.kv.close()
        await becomes(gateway, Trust.RECOVERING)
        fake.kv.start()
        await becomes(gateway, Trust.EXACT)
        assert known(gateway, prompt) == 0


async def test_a_salt_keeps_prompts_apart(tmp_path: Path) -> None:
    async with serving(tmp_path) as (gateway, (fake,)):
        await becomes(gateway, Trust.EXACT)
        await complete(gateway, tokens(0, 10))
        prompt = tokens(1, 130)
        fake.engine.cache.insert(prompt, "a salt")
        await soon(lambda: known(gateway, prompt, salt="a salt") == 128)
        assert known(gateway, prompt) == known(gateway, prompt, salt="another") == 0


@pytest.mark.parametrize("kv", [{"kv_events": "off"}, {}])
async def test_replicas_that_tell_nothing_are_judged_by_what_was_sent(
    tmp_path: Path, kv: dict[str, Any]
) -> None:
    async with serving(tmp_path, kv=kv, kv_events="off") as (gateway, _):
        prompt = tokens(1, 130)
        await complete(gateway, prompt)
        assert known(gateway, prompt) == 128
        assert gateway.metric("headrace_replica_kv_state", "r0", "exact") == 0


async def test_a_reload_begins_goes_on_and_ends(tmp_path: Path) -> None:
    async with serving(tmp_path, kv={"kv_events": "off"}) as (gateway, (fake,)):

        async def reload(**fields: object) -> None:
            document = yaml.safe_load((tmp_path / "headrace.yaml").read_text())
            document["replicas"][0].update(fields)
            await gateway.worker.stage(yaml.safe_dump(document).encode(), str(tmp_path / "x.yaml"))
            gateway.worker.commit()

        prompt = tokens(1, 130)
        await complete(gateway, tokens(0, 10))
        fake.engine.cache.insert(prompt)
        await reload(kv_events="auto")
        await becomes(gateway, Trust.EXACT)
        await soon(lambda: known(gateway, prompt) == 128)
        await reload(kv_events="auto", weight=2.0)
        assert state(gateway) is Trust.EXACT
        assert known(gateway, prompt) == 128
        await reload(kv_events="off")
        assert gateway.metric("headrace_replica_kv_state", "r0", "exact") == 0
        fake.engine.cache.clear()
        await asyncio.sleep(0.05)
        assert known(gateway, prompt) == 128, "nobody listens"


async def test_each_data_parallel_rank_may_be_a_replica(tmp_path: Path) -> None:
    """Two of the three are ranks, the third is whichever the server chooses."""
    async with FakeReplica(kv_events="maps", data_parallel=2) as fake:
        document = base_config([fake.url] * 3)
        for number, replica in enumerate(document["replicas"][:2]):
            replica["data_parallel_rank"] = number
        async with InProcess(document, tmp_path) as gateway:
            for name in ("r0", "r1", "r2"):
                await becomes(gateway, Trust.EXACT, name)
            await complete(gateway, tokens(0, 10))
            first, second = tokens(1, 130), tokens(2, 130)
            fake.engines[0].cache.insert(first)
            fake.engines[1].cache.insert(second)
            await soon(lambda: known(gateway, first, "r0") == known(gateway, second, "r1") == 128)
            assert known(gateway, first, "r1") == known(gateway, second, "r0") == 0
            await soon(lambda: known(gateway, first, "r2") == known(gateway, second, "r2") == 128)
            fake.engines[0].cache.clear()
            await soon(lambda: known(gateway, first, "r2") == 0)
            assert known(gateway, second, "r2") == 128
            await soon(lambda: known(gateway, first, "r0") == 0)
            for _ in range(6):
                await complete(gateway, tokens(3, 10))
            asked = {
                (request.headers.get("x-data-parallel-rank"), request.rank)
                for request in fake.requests
            }
            assert {("0", 0), ("1", 1)} <= asked
            assert {rank for wanted, rank in asked if wanted is None} <= {0, 1}


async def test_a_replica_that_publishes_elsewhere_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.kv.stream.LOST_S", 0.1)
    monkeypatch.setattr("backend.kv.subscriber.TICK_S", 0.02)
    async with serving(tmp_path) as (gateway, (fake,)):
        await becomes(gateway, Trust.EXACT)
        await complete(gateway, tokens(0, 10))
        prompt = tokens(1, 130)
        fake.engine.cache.insert(prompt)
        await soon(lambda: known(gateway, prompt) == 128)
        fake.kv.close()
        await becomes(gateway, Trust.APPROX)
        for rank in fake.kv.ranks:
            rank.forget_places()
        fake.kv.restart()
        await becomes(gateway, Trust.EXACT)
        assert known(gateway, prompt) == 0
