"""Two runs: a change that is there is found, and one that is not is not made up."""

from __future__ import annotations

import functools
import itertools
import random

import pytest
from load_samples import BEGAN, many, record, result

from loadtest.compare import Comparison, compare, render, word_of
from loadtest.result import Result


@functools.cache
def drawn(seed: int, slower: float = 1.0, tail: float = 1.0) -> Result:
    """Times to first token of 20 to 30 ms; 3 % take `tail` times as long."""
    rng, records = random.Random(seed), []
    for number in range(1100):
        due = number / 100
        ttft = rng.uniform(0.020, 0.030) * slower
        if rng.random() < 0.03:
            ttft *= 2 * tail
        at = BEGAN + due + ttft
        records.append(record(number, due, first_at=at, last_at=at + 0.04, ended_at=at + 0.041))
    return result(records)


def words(comparison: Comparison, metric: str) -> dict[float, str]:
    return {each.quantile: each.word for each in comparison.differences if each.metric == metric}


def test_the_same_is_alike() -> None:
    found = compare(result(many()), result(many()))
    assert found.word == "alike"
    assert {each.word for each in found.differences} == {"alike"}
    assert found.notes == []


def test_two_runs_of_one_server_are_not_said_to_differ() -> None:
    runs = [drawn(seed) for seed in range(1, 4)]
    said = [compare(a, b).word for a, b in itertools.combinations(runs, 2)]
    assert "slower" not in said
    assert "faster" not in said


def test_a_slower_server_is_found_and_the_other_way_round() -> None:
    a, b = drawn(1), drawn(2, slower=1.2)
    found = compare(a, b)
    assert found.word == "slower"
    assert words(found, "ttft")[0.5] == "slower"
    each = found.differences[0]
    assert each.low is not None
    assert each.high is not None
    assert each.low < 1.2 < each.high
    assert words(compare(b, a), "ttft")[0.5] == "faster"


def test_all_of_it_faster() -> None:
    quick = [
        record(n, n / 100, first_at=BEGAN + n / 100 + 0.04, ended_at=BEGAN + n / 100 + 0.07)
        for n in range(1100)
    ]
    for each in quick:
        each.last_at = each.first_at + 0.04
    found = compare(result(many()), result(quick))
    assert found.word == "faster"
    assert {words(found, name)[0.5] for name in ("ttft", "e2e")} == {"faster"}
    assert words(found, "tpot")[0.5] == "alike"


def test_a_slower_tail_is_found_and_the_median_is_not_blamed() -> None:
    found = words(compare(drawn(1), drawn(2, tail=1.5)), "ttft")
    assert found[0.99] == "slower"
    assert found[0.5] in ("alike", "unclear")


def test_few_samples_have_no_tail() -> None:
    found = compare(result(many()[:300]), result(many()))
    assert words(found, "ttft") == {0.5: "alike", 0.9: "alike", 0.95: "alike", 0.99: "too few"}
    assert found.word == "alike"


def test_a_run_that_is_not_valid_decides_nothing() -> None:
    found = compare(result(many()), result(many(), cpu_s=10.5))
    assert found.word == "unclear"
    assert found.notes[0].startswith("B is INVALID: the client used")


def test_no_answers_at_all() -> None:
    found = compare(result([]), result(many()))
    assert found.word == "unclear"
    assert {each.word for each in found.differences} == {"too few"}


def test_what_makes_them_less_alike_is_said() -> None:
    a, b = result(many()), result([*many(), record(1, 3, outcome="reset")])
    a.about = {"seed": 1, "machine": {"processor": "x"}}
    b.about = {"seed": 2, "machine": {"processor": "y"}}
    assert compare(a, b).notes == [
        "the seeds differ",
        "the machines differ",
        "failed: A 0.00%, B 0.10%; they are in no latency",
    ]


@pytest.mark.parametrize(
    ("low", "high", "change_ms", "word"),
    [
        (1.06, 1.2, 5.0, "slower"),
        (1.06, 1.2, 0.1, "alike"),
        (0.8, 0.94, -5.0, "faster"),
        (0.8, 0.94, -0.1, "alike"),
        (0.97, 1.04, 1.0, "alike"),
        (1.01, 1.2, 5.0, "unclear"),
        (0.8, 1.2, 0.0, "unclear"),
    ],
)
def test_words(low: float, high: float, change_ms: float, word: str) -> None:
    assert word_of(low, high, 0.05, change_ms) == word


def test_the_table() -> None:
    said = render(compare(result(many()[:300]), result(many()))).splitlines()
    assert said[1].split() == ["ttft", "p50", "50.0", "50.0", "1.000", "[1.000", "1.000]", "alike"]
    assert said[4].split() == ["ttft", "p99", "-", "50.0", "-", "-", "too", "few"]
    assert said[-1] == "B is ALIKE"
