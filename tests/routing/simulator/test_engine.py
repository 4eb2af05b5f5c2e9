"""The model of a replica, against its own formula."""

from __future__ import annotations

import pytest

from routing.simulator.engine import BlockCache, Engine, EngineModel, Job
from routing.simulator.trace import Request

MODEL = EngineModel()


def job(number: int, length: int, output: int, blocks: tuple[int, ...] = ()) -> Job:
    return Job(Request(number, 0.0, length, output, blocks), 0.0)


def play(engine: Engine, arrivals: list[tuple[float, Job]]) -> None:
    """Until everything is done."""
    while arrivals or engine.end_at is not None:
        due = engine.end_at if engine.end_at is not None else float("inf")
        if arrivals and arrivals[0][0] <= due:
            at, one = arrivals.pop(0)
            engine.submit(one, at)
        else:
            engine.finish_steps(due)


def test_one_request_alone() -> None:
    engine = Engine(MODEL, 64)
    one = job(0, 1000, 11)
    play(engine, [(0.0, one)])
    prefill = MODEL.step_s + MODEL.prefill_seconds(1000, 0)
    assert one.first_at == pytest.approx(prefill)
    steps = sum(MODEL.step_s + MODEL.per_sequence + MODEL.per_token * (1000 + n) for n in range(10))
    assert one.ended_at == pytest.approx(prefill + steps)
    assert (engine.used, engine.context, engine.end_at) == (0, 0, None)
    assert engine.busy_s == pytest.approx(one.ended_at)


def test_a_long_prompt_is_chunked_and_decoding_goes_on_beside_it() -> None:
    engine = Engine(MODEL, 64)
    short, long = job(0, 100, 2000), job(1, 8192, 1)
    play(engine, [(0.0, short), (1.0, long)])
    assert long.first_at is not None
    assert short.ended_at is not None
    # Five chunks, as the running sequence takes a token's place in each.
    assert long.first_at - 1.0 == pytest.approx(
        MODEL.prefill_seconds(8192, 0) + 5 * 0.0121, abs=0.0125
    )
    alone = Engine(MODEL, 64)
    other = job(0, 100, 2000)
    play(alone, [(0.0, other)])
    assert other.ended_at is not None
    assert short.ended_at - other.ended_at == pytest.approx(MODEL.prefill_seconds(8192, 0), abs=0.1)


def test_the_second_of_two_finds_the_prefix_of_the_first() -> None:
    engine = Engine(MODEL, 64)
    first, second = job(0, 1024, 1, tuple(range(16))), job(1, 1024, 1, tuple(range(16)))
    play(engine, [(0.0, first), (1.0, second)])
    assert (first.cached, second.cached) == (0, 1023)  # the last token is computed always
    assert engine.computed == 1025


def test_who_has_no_room_waits() -> None:
    engine = Engine(EngineModel(kv_tokens=2000), 64)
    first, second = job(0, 1500, 100), job(1, 1500, 100)
    play(engine, [(0.0, first), (0.0, second)])
    assert first.ended_at is not None
    assert second.first_at is not None
    assert second.first_at > first.ended_at


def test_a_slow_replica_takes_longer() -> None:
    times = []
    for slowness in (1.0, 3.0):
        engine = Engine(MODEL, 64)
        engine.slowness = slowness
        one, two = job(0, 5000, 500), job(1, 50, 5)
        play(engine, [(0.0, one), (2.0 * slowness, two)])
        times += [one.ended_at, two.ended_at]
    assert times[2:] == pytest.approx([3 * (time or 0.0) for time in times[:2]])


def test_a_crash_loses_everything() -> None:
    engine = Engine(MODEL, 64)
    one, two = job(0, 100, 100, (1,)), job(1, 9000, 5)
    engine.submit(one, 0.0)
    engine.finish_steps(engine.end_at or 0.0)
    engine.submit(two, 0.1)
    assert set(engine.crash()) == {one, two}
    assert (engine.used, engine.context, engine.end_at, engine.running) == (0, 0, None, 0)
    assert engine.match(one.request) == 0


def test_what_remains_to_be_prefilled() -> None:
    engine = Engine(MODEL, 64)
    assert engine.remaining(0.0) == 0.0
    jobs = [job(number, 6000, 1) for number in range(3)]
    for one in jobs:
        engine.submit(one, 0.0)
    told = engine.remaining(0.0)
    play(engine, [])
    assert jobs[-1].first_at == pytest.approx(told, rel=0.05)


def test_the_cache_forgets_tails_first() -> None:
    cache = BlockCache(4)
    cache.touch([1, 2, 3])
    cache.touch([7, 8])
    assert cache.match([1, 2, 3]) == 2
    assert cache.match([7, 8, 9]) == 2
