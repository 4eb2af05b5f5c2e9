"""Large requests take turns, so that they hold nobody else up.

Each of their steps (reading megabytes of JSON, choosing a replica by thousands of blocks, writing
the body again) takes the event loop for milliseconds. When many come at once these steps would run
back to back; with turns the loop passes between any two of them and serves what is small.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LARGE_BYTES = 128 * 1024
"""A body from here on waits for its turn: below, a step takes less than half a millisecond."""
LARGE_READ_BYTES = 32 * 1024
"""Likewise a connection of which so much of a body was read at once."""


async def next_pass() -> None:
    """Let the loop serve what is ready before the next step."""
    await asyncio.sleep(0)


class Turns:
    """One for all requests of a worker."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Turns taken={self._lock.locked()}>"

    async def wait(self) -> None:
        """Until it is the caller's turn, for what it does before it next awaits."""
        async with self._lock:
            await asyncio.sleep(0)

    async def aside(self, work: Callable[[], T]) -> T:
        """What `work` returns, which may take long, on a thread while the loop goes on."""
        return await asyncio.get_running_loop().run_in_executor(None, work)


class ReadTurns:
    """Of the connections that send large bodies one is read in each pass of the loop: decrypting
    what twenty have sent takes 20 ms."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._paused: deque[asyncio.Transport] = deque()

    def __repr__(self) -> str:
        return f"<ReadTurns {len(self._paused)} wait>"

    def take(self, transport: asyncio.Transport) -> None:
        """Read no more from `transport` until its next turn."""
        transport.pause_reading()
        if not self._paused:
            self._loop.call_soon(self._next)
        self._paused.append(transport)

    def _next(self) -> None:
        transport = self._paused.popleft()
        if not transport.is_closing():
            transport.resume_reading()
        if self._paused:
            self._loop.call_soon(self._next)
