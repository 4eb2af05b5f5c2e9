"""A second try on real sockets."""

from __future__ import annotations

from pathlib import Path

from client import ask, chat
from running import InProcess, base_config
from upstream import until

from loadtest.replica import FakeReplica


async def test_a_late_first_token_comes_from_the_other_replica(tmp_path: Path) -> None:
    async with FakeReplica() as slow, FakeReplica() as quick:
        upstream = {"hedge": {"after_s": 0.2, "budget_ratio": 1.0}}
        document = base_config([slow.url, quick.url], upstream=upstream)
        async with InProcess(document, tmp_path) as gateway:
            slow.behaviour = "stall_first"
            for number in range(3):
                answer = await ask(gateway.port, chat(f"{number}", max_tokens=4))
                assert answer.complete
                assert answer.text
            assert len(quick.requests) == 3
            assert len(slow.requests) > 0
            assert gateway.metric("headrace_hedges_total", "won") == len(slow.requests)
            await until(lambda: all(r.outcome == "aborted" for r in slow.requests))
