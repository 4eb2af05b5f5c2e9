"""The gate: false alarms on equal arms, and what it finds, on made windows."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import pytest

from loadtest.gate import (
    FAIL,
    INCONCLUSIVE,
    LEAST_PER_WINDOW,
    PASS,
    Answer,
    Verdict,
    answers_of,
    judge,
    render,
    together,
)
from loadtest.record import OK, Record

Change = Callable[[random.Random, float], float]


def same(rng: random.Random, value: float) -> float:
    return value


def tail_longer(rng: random.Random, value: float) -> float:
    return value + 14.0 if rng.random() < 0.03 else value


def buffered(rng: random.Random, value: float) -> float:
    return value * 3


def slower(rng: random.Random, value: float) -> float:
    return value + 1.0


@functools.cache  # several tests look at the same
def equal(
    seed: int,
    *,
    per_window: int = 2 * LEAST_PER_WINDOW + 120,
    windows: int = 14,
    noise: float = 0.2,
) -> tuple[Answer, ...]:
    """Log-normal times whose median moves from window to window, as on a busy machine."""
    rng = random.Random(seed)
    found = []
    for window in range(windows):
        level = 10.0 * rng.lognormvariate(0, noise)
        for _ in range(per_window):
            first, longest = level * rng.lognormvariate(0, 0.3), 8.0 * rng.lognormvariate(0, 0.2)
            due_s = window * 4 + rng.random() * 4
            found.append(Answer(rng.randrange(2), due_s, first, longest, first + 500.0))
    return tuple(found)


def answers(seed: int, *, ttft: Change = same, gap: Change = same) -> list[Answer]:
    """Those of `equal`, the candidate's changed."""
    rng = random.Random(seed)
    return [
        Answer(1, a.due_s, first := ttft(rng, a.ttft), gap(rng, a.gap_max), first + 500.0)
        if a.arm
        else a
        for a in equal(seed)
    ]


def verdict(seed: int, **changes: Change) -> Verdict:
    return judge(answers(seed, **changes), window_s=4.0, seed=seed)


def test_equal_arms_are_seldom_taken_for_different_ones() -> None:
    words = [verdict(seed).word for seed in range(12)]
    assert FAIL not in words
    assert words.count(PASS) >= 10


@pytest.mark.parametrize(
    ("change", "metric"),
    [
        ({"ttft": tail_longer}, ("ttft", 0.99)),
        ({"gap": buffered}, ("gap_max", 0.5)),
        ({"ttft": slower}, ("ttft", 0.5)),
    ],
)
def test_regressions_are_found_and_named(
    change: dict[str, Change], metric: tuple[str, float]
) -> None:
    found = [verdict(seed, **change) for seed in range(6)]
    regressed = [
        {(each.metric, each.quantile) for each in one.findings if each.regressed} for one in found
    ]
    assert [one.word for one in found].count(FAIL) >= 5
    assert sum(metric in names for names in regressed) >= 5


def test_a_candidate_that_is_faster_passes() -> None:
    assert verdict(1, ttft=lambda _, value: value * 0.5).word == PASS


def test_too_few_answers_say_nothing() -> None:
    few = judge(equal(1, per_window=100), window_s=4.0, seed=1)
    assert few.word == INCONCLUSIVE
    assert "run longer or faster" in few.reasons[0]
    assert judge([], window_s=4.0, seed=1).word == INCONCLUSIVE


def test_noisy_windows_are_left_out_of_both_and_many_say_nothing() -> None:
    def with_noisy(count: int) -> Verdict:
        quiet = equal(3, noise=0.05, windows=20)
        loud = [
            Answer(a.arm, a.due_s, a.ttft * (9 if a.due_s < count * 4 else 1), a.gap_max, a.e2e)
            for a in quiet
        ]
        return judge(loud, window_s=4.0, seed=3)

    assert (with_noisy(3).left_out, with_noisy(3).word) == (3, PASS)
    assert with_noisy(8).word == INCONCLUSIVE


def test_failures_of_the_candidate_count() -> None:
    few = judge(equal(1), window_s=4.0, seed=1, failed=(0, 3))
    many = judge(equal(1), window_s=4.0, seed=1, failed=(0, 300))
    assert (few.word, many.word) == (PASS, FAIL)
    assert "300 requests failed" in many.reasons[-1]


def test_what_does_not_happen_again_is_no_regression() -> None:
    regressed, fine = verdict(1, ttft=tail_longer), verdict(1)
    assert together(regressed, verdict(2, ttft=tail_longer)).word == FAIL
    assert together(regressed, fine).word == PASS
    assert together(regressed, verdict(2, gap=buffered)).word == PASS


def test_only_whole_answers_after_the_warm_up_count() -> None:
    def record(due_at: float, **changes: object) -> Record:
        made = Record(1, 0, "a", due_at, first_at=due_at + 0.02, ended_at=due_at + 0.5)
        made.outcome, made.arm, made.gap_max = OK, 1, 0.003
        for name, value in changes.items():
            setattr(made, name, value)
        return made

    records = [record(5.0), record(1.0), record(6.0, outcome="reset"), record(6.0, slow=True)]
    (found,) = answers_of(records, 2.0)
    assert (found.arm, found.due_s) == (1, 3.0)
    assert (found.ttft, found.gap_max, found.e2e) == pytest.approx((20.0, 3.0, 500.0))


def test_the_table_ends_with_the_verdict() -> None:
    lines = list(render(verdict(1, ttft=tail_longer)))
    assert lines[-1] == "FAIL"
    assert any("REGRESSED" in line for line in lines)
