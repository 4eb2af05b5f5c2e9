from __future__ import annotations

import pytest
from charges import REQUESTS, STREAMS, TOKENS, charge_of, plan_of, tokens
from hypothesis import given
from hypothesis import strategies as st

from core.principal import Principal
from ratelimit.bucket import UNITS
from ratelimit.config import Rule
from ratelimit.memory_store import MemoryStore
from ratelimit.shared_table import PROBES, Shard, SharedTable
from ratelimit.store import Charge, StoreUnavailable

NOW = 1_000_000_000
ALL = plan_of(REQUESTS, TOKENS, STREAMS)
EMPTY = Rule(name="r", limit=1, window="day")


def two_workers(rows: int = 64) -> tuple[Shard, Shard]:
    table = SharedTable(2, shards=1, rows=rows)
    return table.shard(0, 0), table.shard(0, 1)


def reserved(shard: Shard, prompt: int = 10, output: int = 0) -> Charge:
    charge = charge_of(ALL, prompt, output)
    assert shard.reserve(charge, NOW).granted
    return charge


def levels(shard: Shard) -> list[float]:
    return tokens(shard.levels(ALL.buckets, NOW))


def test_workers_share_the_buckets() -> None:
    one, two = two_workers()
    reserved(one, 100)
    assert tokens(two.reserve(charge_of(ALL, 50, 30), NOW).levels) == [8, 820, 1]
    assert not one.reserve(charge_of(ALL, 900), NOW).granted
    assert levels(one) == levels(two) == [8, 820, 1]


def test_what_was_used_is_charged_in_the_end() -> None:
    one, two = two_workers()
    charge = reserved(one, 100, 50)
    assert levels(two) == [9, 850, 2]
    one.correct(charge, ALL.amounts(100, 0, 80), NOW, final=False)
    assert levels(two) == [9, 820, 2]
    one.correct(charge, ALL.amounts(100, 0, 20), NOW, final=True)
    assert levels(two) == [9, 880, 3]


def test_what_a_dead_worker_held_comes_back_and_what_it_used_does_not() -> None:
    one, two = two_workers()
    reserved(one, 100, 50)
    told = reserved(one, 100, 50)
    one.correct(told, used := ALL.amounts(100, 0, 20), NOW, final=False)
    told.used = used
    reserved(two, 10)
    assert levels(two) == [7, 690, 0]
    one.release()
    one.release()
    assert levels(two) == [8, 870, 2]


def test_a_worker_that_lives_on_all_the_same_is_charged_what_it_used() -> None:
    one, two = two_workers()
    silent, speaking = reserved(one, 100, 50), reserved(one, 100, 50)
    one.correct(speaking, used := ALL.amounts(100, 0, 20), NOW, final=False)
    speaking.used = used
    one.release()
    assert levels(two) == [9, 880, 3]
    one.correct(silent, ALL.amounts(100, 0, 30), NOW, final=True)
    assert levels(two) == [8, 750, 3]
    one.correct(speaking, ALL.amounts(100, 0, 40), NOW, final=False)
    assert levels(two) == [8, 730, 2]
    one.correct(speaking, ALL.amounts(100, 0, 45), NOW, final=True)
    assert levels(two) == [8, 725, 3]


@pytest.mark.parametrize("step", range(2, 60))
def test_a_call_that_is_cut_short_at_any_word_changes_nothing(step: int) -> None:
    """A worker is killed between two stores; the next one to lock the shard finds out."""

    class Killed(BaseException):
        pass

    class Words:
        def __init__(self, words: memoryview) -> None:
            self.words = words
            self.left = step

        def __getitem__(self, index: int | slice) -> object:
            return self.words[index]

        def __setitem__(self, index: int, value: int) -> None:
            self.left -= 1
            if self.left < 0:
                raise Killed
            self.words[index] = value

    one, two = two_workers()
    held = reserved(two, 100, 50)
    before = levels(two)
    words, one._words = one._words, Words(one._words)  # type: ignore[assignment]
    try:
        one.reserve(charge_of(ALL, 10), NOW)
        return  # it was done before it could be killed
    except Killed:
        one._words = words
    two.recover()
    assert levels(two) == before
    one.release()
    assert levels(two) == before
    two.correct(held, ALL.nothing, NOW, final=True)
    assert levels(two) == [10, 1000, 3]


def test_the_row_of_a_full_bucket_serves_another_one() -> None:
    shard, _ = two_workers(rows=PROBES)
    for i in range(10 * PROBES):
        now = NOW + i * 7_000_000  # the last one is full again
        charge = charge_of(plan_of(REQUESTS, principal=Principal(f"t{i}")))
        assert shard.reserve(charge, now).granted
        shard.correct(charge, (UNITS,), now, final=True)


def test_without_room_the_bucket_nearest_to_full_is_forgotten() -> None:
    shard, _ = two_workers(rows=PROBES)
    plans = [plan_of(EMPTY, principal=Principal(f"t{i}")) for i in range(PROBES + 1)]
    for i, plan in enumerate(plans):
        charge = charge_of(plan)
        assert shard.reserve(charge, NOW + i).granted
        shard.correct(charge, (UNITS,), NOW + i, final=True)
    known = [shard.reserve(charge_of(plan), NOW + 99).granted for plan in plans[1:]]
    assert known == [False] * PROBES


def test_what_is_held_is_not_forgotten() -> None:
    shard, _ = two_workers(rows=PROBES)
    for i in range(PROBES):
        assert shard.reserve(charge_of(plan_of(STREAMS, principal=Principal(f"t{i}"))), NOW).granted
    with pytest.raises(StoreUnavailable, match="full"):
        shard.reserve(charge_of(plan_of(STREAMS, principal=Principal("more"))), NOW)


def test_a_request_with_very_many_buckets_is_not_counted() -> None:
    shard, _ = two_workers()
    many = plan_of(*[Rule(name=f"r{i}", limit=1) for i in range(65)])
    with pytest.raises(StoreUnavailable, match="too_many_buckets"):
        shard.reserve(charge_of(many), NOW)


def test_resetting_fills_but_what_is_held_stays_held() -> None:
    one, two = two_workers()
    reserved(one, 100)
    two.reset(ALL.buckets, NOW)
    assert levels(one) == [10, 1000, 2]


step = st.tuples(
    st.sampled_from(["reserve", "progress", "settle", "abandon", "wait"]),
    st.integers(0, 3),
    st.integers(0, 400),
    st.integers(0, 400),
)


@given(st.lists(step, max_size=40))
async def test_it_is_the_same_as_the_store_in_memory(
    trace: list[tuple[str, int, int, int]],
) -> None:
    """Two workers on one table against one dict, on random histories."""
    now_us = NOW
    shards, alone = two_workers(), MemoryStore(lambda: 0.0)
    alone._now_us = lambda: now_us  # type: ignore[method-assign]
    rules = [*ALL.rules, Rule(name="quiet", unit="output_tokens", limit=500, shadow=True)]
    plan = plan_of(*rules)
    running: list[tuple[int, Charge, Charge]] = []
    for op, pick, first, second in trace:
        if op == "wait":
            now_us += first * 100_000
        elif op == "reserve":
            worker, mine, other = pick % 2, *[charge_of(plan, first, second) for _ in range(2)]
            decision = shards[worker].reserve(mine, now_us)
            assert decision == await alone.reserve(other)
            if decision.granted:
                running.append((worker, mine, other))
        elif running:
            worker, mine, other = running[pick % len(running)]
            used = plan.nothing if op == "abandon" else plan.amounts(first, 0, second)
            final = op != "progress"
            shards[worker].correct(mine, used, now_us, final=final)
            mine.used = used
            (alone.settle if final else alone.progress)(other, used)
            if final:
                running.remove((worker, mine, other))
        assert shards[0].levels(plan.buckets, now_us) == await alone.levels(plan)
