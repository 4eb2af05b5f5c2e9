"""The gate between fake replicas: each request to one of both, and the slower one is found."""

from __future__ import annotations

from typing import Any

from loadtest import gate
from loadtest.lanes import parse_target
from loadtest.replica import FakeReplica
from loadtest.runner import Runner
from loadtest.scenario import Poisson, Requests, Scenario

SCENARIO = Scenario(
    name="small",
    arrivals=Poisson(rate=120),
    warm_up_s=0.2,
    duration_s=4,
    requests=[Requests(name="chat", prompt=5, output=2)],
)


async def test_a_slower_candidate_is_found_and_each_had_about_half(monkeypatch: Any) -> None:
    monkeypatch.setattr(gate, "LEAST_PER_WINDOW", 12)
    async with (
        FakeReplica(behaviour="slow_head=0.02", prefill_base_ms=0, token_ms=1) as base,
        FakeReplica(behaviour="slow_head=0.08", prefill_base_ms=0, token_ms=1) as candidate,
    ):
        targets = [parse_target(replica.url, None) for replica in (base, candidate)]
        runner = Runner(SCENARIO, 7, targets[0], lambda _: {}, others=targets[1:])
        samples = await runner.run()
        asked = [len(replica.requests) for replica in (base, candidate)]
    begin_at = samples.began_at + SCENARIO.warm_up_s
    answers = gate.answers_of(samples.records, begin_at)
    found = gate.judge(answers, window_s=0.4, seed=7)
    medians = [each for each in found.findings if each.quantile == 0.5 and each.regressed]
    assert {each.metric for each in medians} >= {"ttft", "e2e"}
    assert sum(asked) == len(samples.records)
    assert min(asked) > 0.4 * sum(asked)
    assert [sum(each.arm == arm for each in samples.records) for arm in (0, 1)] == asked
