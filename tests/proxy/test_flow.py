from __future__ import annotations

import asyncio
import logging
import math

import pytest

from proxy.flow import LOOKS, NEVER, Watchdog


class Thing:
    """Watched; `due` is what it was told, and `then` its next deadline."""

    def __init__(self, deadline_at: float, *, then: float = NEVER, fails: bool = False) -> None:
        self.deadline_at = deadline_at
        self.then = then
        self.fails = fails
        self.due: list[float] = []

    def on_deadline(self, now: float) -> None:
        self.due.append(now)
        if self.fails:
            raise ValueError("broken")
        self.deadline_at = self.then


async def ticks(watchdog: Watchdog, count: int = 3) -> None:
    """Let the watchdog, made with a tick of 0 s, sweep so many times."""
    seen: list[float] = []
    enough = asyncio.Event()

    def on_tick(now: float) -> None:
        seen.append(now)
        if len(seen) == count:
            watchdog.close()
            enough.set()

    watchdog.every_tick(on_tick)
    watchdog.start()
    await enough.wait()
    assert seen == sorted(seen)


async def test_what_is_due_is_told_until_it_moves() -> None:
    watchdog = Watchdog(tick_s=0)
    once, always, never, far = Thing(0.0), Thing(0.0, then=0.0), Thing(NEVER), Thing(1e12)
    for thing in (once, always, never, far):
        watchdog.add(thing)
    assert len(watchdog) == 4
    await ticks(watchdog)
    assert (len(once.due), len(always.due), never.due, far.due) == (1, 3, [], [])


async def test_what_is_discarded_is_left_alone() -> None:
    watchdog = Watchdog(tick_s=0)
    thing = Thing(0.0)
    watchdog.add(thing)
    watchdog.discard(thing)
    watchdog.discard(thing)
    await ticks(watchdog)
    assert thing.due == []
    assert len(watchdog) == 0


async def test_one_that_fails_costs_no_other_its_deadline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watchdog = Watchdog(tick_s=0)
    things = [Thing(0.0, then=0.0, fails=number == 2) for number in range(5)]
    for thing in things:
        watchdog.add(thing)
    with caplog.at_level(logging.ERROR, "headrace.flow"):
        await ticks(watchdog)
    assert [len(thing.due) for thing in things] == [3] * 5
    assert len(caplog.records) == 3


async def test_things_may_come_and_go_during_a_sweep() -> None:
    watchdog = Watchdog(tick_s=0)

    class Leaver(Thing):
        def on_deadline(self, now: float) -> None:
            super().on_deadline(now)
            watchdog.discard(self)
            watchdog.add(Thing(NEVER))

    leavers = [Leaver(0.0, then=0.0) for _ in range(5)]
    for leaver in leavers:
        watchdog.add(leaver)
    await ticks(watchdog)
    assert [len(leaver.due) for leaver in leavers] == [1] * 5
    assert len(watchdog) == 5


async def test_a_great_many_are_looked_at_by_turns() -> None:
    watchdog = Watchdog(tick_s=0)
    things = [Thing(0.0, then=0.0) for _ in range(2 * LOOKS + 1)]
    for thing in things:
        watchdog.add(thing)
    await ticks(watchdog, 2)
    assert [len(thing.due) for thing in things] == [1] * (2 * LOOKS) + [0]
    await ticks(watchdog, 3)
    assert [len(thing.due) for thing in things] == [2] * (2 * LOOKS) + [1]


async def test_of_many_those_that_leave_are_left_alone_and_the_others_are_not() -> None:
    watchdog = Watchdog(tick_s=0)
    things = [Thing(0.0, then=0.0) for _ in range(3 * LOOKS)]
    for thing in things:
        watchdog.add(thing)
    await ticks(watchdog, 1)
    leaving = things[::2]
    for thing in leaving:
        watchdog.discard(thing)
    assert len(watchdog) == len(things) - len(leaving)
    await ticks(watchdog, 4)
    assert {len(thing.due) for thing in leaving} <= {0, 1}
    assert min(len(thing.due) for thing in things[1::2]) >= 2
    for thing in things:
        watchdog.discard(thing)
    assert len(watchdog) == 0


async def test_after_close_nothing_is_swept() -> None:
    watchdog = Watchdog(tick_s=0)
    watchdog.close()
    await ticks(watchdog)
    thing = Thing(0.0)
    watchdog.add(thing)
    for _ in range(5):
        await asyncio.sleep(0)
    assert thing.due == []


def test_never_is_later_than_any_instant() -> None:
    assert math.isinf(NEVER)
    assert not NEVER <= 1e300
