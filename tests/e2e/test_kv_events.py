"""The core follows what replicas hold, and every worker routes by it."""

from __future__ import annotations

from client import ask
from running import Process, base_config, eventually, metric

from loadtest.replica import FakeReplica


async def test_workers_know_what_only_the_replica_told() -> None:
    async with FakeReplica(kv_events="maps") as one, FakeReplica(kv_events="maps") as two:
        prompt = list(range(100, 400))
        two.engine.cache.insert(prompt)
        with Process(base_config([one.url, two.url], workers=2)) as gateway:

            async def exact() -> bool:
                name = "headrace_replica_kv_state"
                states = [
                    await metric(gateway, name, replica=replica, state="exact")
                    for replica in ("r0", "r1")
                ]
                return states == [1, 1]

            await eventually(exact)
            document = {"model": "demo", "prompt": prompt, "max_tokens": 1}
            for _ in range(4):
                answer = await ask(gateway.port, document, path="/v1/completions")
                assert answer.status == 200
            assert (len(one.requests), len(two.requests)) == (0, 4)
            two.engine.cache.clear()

            async def told() -> bool:
                found = await metric(gateway, "headrace_index_entries")
                return found == 0

            await eventually(told)

            async def logged() -> bool:
                return len(gateway.records()) == 4

            await eventually(logged)
            assert {one["predicted_cached_tokens"] for one in gateway.records()} == {256}
