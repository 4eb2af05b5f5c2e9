"""What a run tells of the server."""

from __future__ import annotations

from array import array

import msgspec
import pytest
from load_samples import record

from loadtest.record import Samples, Seen
from loadtest.result import Counts
from loadtest.server_side import (
    COUNTERS,
    balance_of,
    cpu_rates,
    phases_of,
    series_of,
    shares_of,
)


def counts(answers: int, tokens: int) -> Counts:
    zero = {each.name: 0 for each in msgspec.structs.fields(Counts) if each.type is int}
    zero |= {"ok": answers, "output_tokens": tokens}
    return Counts(errors={}, statuses={}, examples={}, **zero)


def test_cpu_of_the_measured_part_by_answers_and_tokens() -> None:
    clocks = [
        Seen(f"process {n}", "cpu", "s", array("d", [100, 101, 102]), array("d", [1.0, 1.5, 2.5]))
        for n in (1, 2)
    ]
    memory = Seen("process 1", "rss", "bytes", array("d", [100]), array("d", [1e9]))
    series = series_of(Samples(began_at=100.0, seen=[*clocks, memory]))
    assert [each.at_s for each in series] == [[0, 1, 2], [0, 1, 2], [0]]
    assert cpu_rates(series, counts(10, 200), begin_s=1.2) == {
        "server_cpu_us_per_answer": pytest.approx(2e6 / 10),
        "server_cpu_us_per_token": pytest.approx(2e6 / 200),
    }
    assert cpu_rates(series, counts(0, 0), begin_s=1.2) == {}
    assert cpu_rates([series[-1]], counts(10, 200), begin_s=1.2) == {}


def test_a_phase_that_an_answer_does_not_name_took_no_time() -> None:
    told = [record(1, 2, timing={"auth": 1.0, "queue": 4.0}), record(2, 2, timing={"auth": 3.0})]
    auth, queue = phases_of([*told, record(3, 2)])
    assert (auth.name, auth.count, auth.mean) == ("auth", 2, 2.0)
    assert (queue.name, queue.count, queue.mean) == ("queue", 1, 2.0)
    assert phases_of([record(3, 2)]) == []


def test_what_replicas_did_and_how_even() -> None:
    def page(prompt: float, hits: float) -> dict[str, float]:
        return {COUNTERS["prompt_tokens"]: prompt, COUNTERS["cached_tokens"]: hits}

    before = {"a": page(100, 50), "b": page(500, 0)}
    after = {"a": page(400, 150), "b": page(100, 0), "c": page(0, 0)}  # b began anew
    shares = shares_of(before, after)
    assert [each.prompt_tokens for each in shares] == [300, 100, 0]
    assert shares[0].cached_tokens == 100
    assert balance_of(shares) == pytest.approx(200 / 100)
    assert balance_of(shares_of({}, {"c": page(0, 0)})) is None
