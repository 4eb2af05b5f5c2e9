"""Long work beside the event loop, on a thread that lives as long as the work does."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

SWITCH_S = 0.0002
"""The loop gets the interpreter's lock back within this time, not within 5 ms."""


async def aside(work: Callable[[], T]) -> T:
    """What `work` returns or raises. When cancelled, the work goes on to its end for nothing."""
    sys.setswitchinterval(SWITCH_S)
    executor = ThreadPoolExecutor(1, thread_name_prefix="headrace-aside")
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, work)
    finally:
        executor.shutdown(wait=False)
