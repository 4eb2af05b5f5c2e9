from __future__ import annotations

import asyncio
import threading

import pytest

from proxy.serve.aside import aside


async def test_the_loop_goes_on_beside_the_work() -> None:
    go_on = threading.Event()

    def work() -> str:
        assert go_on.wait(5)
        return threading.current_thread().name

    running = asyncio.ensure_future(aside(work))
    await asyncio.sleep(0)
    go_on.set()
    assert (await running).startswith("headrace-aside")


async def test_its_failure_is_raised_and_its_thread_ends() -> None:
    def work() -> None:
        raise ValueError("no")

    before = threading.active_count()
    for _ in range(5):
        with pytest.raises(ValueError, match="no"):
            await aside(work)
    for thread in threading.enumerate():
        if thread.name.startswith("headrace-aside"):
            thread.join(5)
    assert threading.active_count() <= before  # one of another test may have ended, too


async def test_who_is_cancelled_does_not_wait_for_the_work() -> None:
    go_on = threading.Event()
    running = asyncio.ensure_future(aside(lambda: go_on.wait(5)))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    go_on.set()
