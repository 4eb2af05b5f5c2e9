from __future__ import annotations

import asyncio
import threading
from typing import cast

import pytest

from proxy.turns import ReadTurns, Turns


async def test_the_loop_passes_between_two_turns() -> None:
    turns, passes, steps = Turns(), 0, []

    async def large() -> None:
        for _ in range(3):
            await turns.wait()
            steps.append(passes)

    tasks = [asyncio.ensure_future(large()) for _ in range(10)]
    while not all(task.done() for task in tasks):
        passes += 1
        await asyncio.sleep(0)
    assert len(steps) == 30
    assert len(set(steps)) == 30  # no two in one pass


async def test_turns_come_in_order() -> None:
    turns, order = Turns(), []

    async def large(number: int) -> None:
        await turns.wait()
        order.append(number)

    await asyncio.gather(*[large(number) for number in range(10)])
    assert order == list(range(10))


async def test_who_leaves_the_queue_holds_nobody_up() -> None:
    turns = Turns()
    waiting = [asyncio.ensure_future(turns.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    for task in waiting[:2]:
        task.cancel()
    await asyncio.wait_for(waiting[2], 5)
    for task in waiting[:2]:
        with pytest.raises(asyncio.CancelledError):
            await task


class FakeTransport:
    def __init__(self, calls: list[str], name: str) -> None:
        self.calls = calls
        self.name = name
        self.closing = False

    def pause_reading(self) -> None:
        self.calls.append(f"pause {self.name}")

    def resume_reading(self) -> None:
        self.calls.append(f"resume {self.name}")

    def is_closing(self) -> bool:
        return self.closing


async def test_large_bodies_are_read_one_connection_in_each_pass() -> None:
    calls: list[str] = []
    turns, transports = ReadTurns(), [FakeTransport(calls, name) for name in "abc"]
    for transport in transports:
        turns.take(cast(asyncio.Transport, transport))
    assert calls == ["pause a", "pause b", "pause c"]
    transports[1].closing = True
    for expected in ("resume a", "resume c"):
        calls.clear()
        while not calls:
            await asyncio.sleep(0)
        assert calls == [expected]
    turns.take(cast(asyncio.Transport, transports[0]))  # and it begins anew
    await asyncio.sleep(0)
    assert calls[-2:] == ["pause a", "resume a"]


async def test_long_work_is_done_beside_the_loop() -> None:
    assert await Turns().aside(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await Turns().aside(lambda: 1 // 0)
