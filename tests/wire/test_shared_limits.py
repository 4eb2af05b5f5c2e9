"""Buckets in memory that real processes share: exact, and right again after any of them died."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from charges import charge_of, plan_of, tokens

from core.principal import Principal
from ratelimit.config import Rule
from ratelimit.plan import Plan
from ratelimit.shared_store import SharedBuckets, SharedStore
from ratelimit.store import StoreUnavailable

HUNDRED = Rule(name="hundred", limit=100, window="day")
TOKENS = Rule(name="tokens", unit="total_tokens", limit=1_000_000, window="day")
STREAMS = Rule(name="streams", unit="concurrent", limit=50)
LEASE_S = 1.0
Work = Callable[[int], int]


@pytest.fixture
def children() -> Iterator[Callable[[Work, int], int]]:
    """Forks processes that run `work(index)` and exit with its result."""
    started: list[int] = []

    def fork(work: Work, index: int) -> int:
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                code = work(index)
            finally:
                os._exit(code)
        started.append(pid)
        return pid

    yield fork
    for pid in started:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            continue


def result_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def store(buckets: SharedBuckets, worker: int) -> SharedStore:
    return SharedStore(buckets, worker, LEASE_S)


async def take(each: SharedStore, plan: Plan) -> bool:
    while True:
        try:
            return (await each.reserve(charge_of(plan))).granted
        except StoreUnavailable:  # the machine is busy: who holds the lock does not get to run
            await asyncio.sleep(0.001)


def test_four_processes_admit_exactly_the_capacity(children: Callable[[Work, int], int]) -> None:
    """2,000 takes at once, on each of five buckets."""
    plans = [plan_of(HUNDRED, principal=Principal(f"t{i}")) for i in range(5)]
    buckets = SharedBuckets(4)
    begin_read, begin_write = os.pipe()
    granted_read, granted_write = os.pipe()

    def work(index: int) -> int:
        each = store(buckets, index)
        os.write(granted_write, b"here")
        os.read(begin_read, 1)

        async def all_at_once() -> list[bool]:
            taken = []
            for number in range(500):
                taken += await asyncio.gather(*[take(each, plan) for plan in plans])
                if number % 10 == 0:
                    await asyncio.sleep(0.001)  # no process shall be done before another begins
            return taken

        os.write(granted_write, b"%04d" % sum(asyncio.run(all_at_once())))
        return 0

    pids = [children(work, index) for index in range(4)]
    for _ in pids:
        assert os.read(granted_read, 4) == b"here"
    os.write(begin_write, b"xxxx")
    assert [result_of(pid) for pid in pids] == [0] * 4
    granted = [int(os.read(granted_read, 4)) for _ in pids]
    for descriptor in (begin_read, begin_write, granted_read, granted_write):
        os.close(descriptor)
    assert sum(granted) == 5 * 100
    assert sum(count > 0 for count in granted) > 1, "one process was alone"

    async def left() -> list[list[float]]:
        return [tokens(await store(buckets, 0).levels(plan)) for plan in plans]

    assert [int(level) for (level,) in asyncio.run(left())] == [0] * 5


def test_whoever_is_killed_whenever_all_is_right_again(
    children: Callable[[Work, int], int],
) -> None:
    """Workers reserve, report, settle and abandon at random, and are killed at random instants, in
    the middle of a call too. What they settled stays; what they held comes back."""
    plan = plan_of(HUNDRED, TOKENS, STREAMS)
    buckets = SharedBuckets(3)
    settled_read, settled_write = os.pipe()

    def work(index: int) -> int:
        dice, each = random.Random(os.getpid()), store(buckets, index)

        async def live() -> None:
            await each.start()
            while True:
                charge = charge_of(plan, dice.randrange(100), dice.randrange(100))
                try:
                    if not (await each.reserve(charge)).granted:
                        continue
                except StoreUnavailable:
                    continue
                used = plan.amounts(dice.randrange(100), 0, dice.randrange(100))
                if dice.random() < 0.5:
                    each.progress(charge, plan.nothing)
                if dice.random() < 0.01:
                    # Told before it is done: a kill in between makes at most one too many.
                    os.write(settled_write, b"%08d" % (used[1] // 10**6))
                    each.settle(charge, used)
                else:
                    each.settle(charge, plan.nothing)

        asyncio.run(live())
        return 0

    dice = random.Random(4)
    pids = {index: children(work, index) for index in range(3)}
    kills = 40
    for _ in range(kills):
        time.sleep(dice.uniform(0.0, 0.02))
        index = dice.randrange(3)
        os.kill(pids[index], signal.SIGKILL)
        assert result_of(pids[index]) == -signal.SIGKILL
        pids[index] = children(work, index)
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
        result_of(pid)
    os.set_blocking(settled_read, False)
    told = os.read(settled_read, 1 << 20)
    for descriptor in (settled_read, settled_write):
        os.close(descriptor)
    used = [int(told[at : at + 8]) for at in range(0, len(told), 8)]

    async def left() -> list[float]:
        for index in range(3):
            await store(buckets, index).start()  # as their successors do
        return tokens(await store(buckets, 0).levels(plan))

    requests, tokens_left, streams = asyncio.run(left())
    assert streams == 50
    # What was told, less what was killed before it was settled; all of that flows in very slowly.
    charged_requests, charged_tokens = 100 - requests, 1_000_000 - tokens_left
    assert len(used) - (kills + 3) <= round(charged_requests) <= len(used)
    assert sum(used) - 200 * (kills + 3) <= round(charged_tokens, -1) <= sum(used) + 10


async def test_a_worker_that_died_gives_back_within_one_lease(
    children: Callable[[Work, int], int],
) -> None:
    """Also when nobody takes its place."""
    plan, buckets = plan_of(HUNDRED, STREAMS), SharedBuckets(2)

    def work(index: int) -> int:
        async def hold() -> None:
            each = store(buckets, index)
            await each.start()
            for _ in range(20):
                await each.reserve(charge_of(plan))

        asyncio.run(hold())
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    survivor = store(buckets, 0)
    await survivor.start()
    assert result_of(children(work, 1)) == -signal.SIGKILL
    died_at = time.monotonic()
    assert tokens(await survivor.levels(plan))[1] == 30
    while tokens(await survivor.levels(plan))[1] != 50:
        survivor.tick()
        await asyncio.sleep(0.01)
    assert 0.5 < time.monotonic() - died_at < LEASE_S + 0.5
    assert round(tokens(await survivor.levels(plan))[0]) == 100


async def test_a_worker_that_is_stopped_while_it_counts_does_not_hold_up_the_others(
    children: Callable[[Work, int], int],
) -> None:
    plan, buckets = plan_of(HUNDRED), SharedBuckets(2)

    def work(index: int) -> int:
        each = store(buckets, index)
        each._lock(plan)
        os.kill(os.getpid(), signal.SIGSTOP)
        return 0

    pid = children(work, 1)
    os.waitpid(pid, os.WUNTRACED)  # noqa: ASYNC222 - it stops at once
    other = store(buckets, 0)
    started_at = time.monotonic()
    with pytest.raises(StoreUnavailable, match="locked"):
        await other.reserve(charge_of(plan))
    assert time.monotonic() - started_at < 0.5  # 5 ms, and what a busy machine adds
    os.kill(pid, signal.SIGKILL)
    result_of(pid)
    assert (await other.reserve(charge_of(plan))).granted
