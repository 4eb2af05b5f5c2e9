"""The only caller of `create_task`: tasks are kept alive and their failures are logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_log = logging.getLogger("headrace.tasks")
_running: set[asyncio.Task[Any]] = set()


def spawn(coroutine: Coroutine[Any, Any, T], name: str, *, watch: bool = True) -> asyncio.Task[T]:
    """Run `coroutine` in the background. With `watch` an exception that nobody awaits is logged
    once; a coroutine that handles all of its own does without."""
    task = asyncio.get_running_loop().create_task(coroutine, name=name)
    _running.add(task)
    task.add_done_callback(_ended if watch else _running.discard)
    return task


def spawn_told(
    coroutine: Coroutine[Any, Any, T], name: str, ended: Callable[[], None]
) -> asyncio.Task[T]:
    """As `spawn` without `watch`; `ended` is called once it has. One callback for both, because a
    second one costs each request a turn of the loop's queue."""
    task = asyncio.get_running_loop().create_task(coroutine, name=name)
    _running.add(task)

    def forget(task: asyncio.Task[T]) -> None:
        _running.discard(task)
        ended()

    task.add_done_callback(forget)
    return task


def running(name: str | None = None) -> list[asyncio.Task[Any]]:
    """The spawned tasks that have not ended, all or those called `name`."""
    return [task for task in _running if name is None or task.get_name() == name]


def count() -> int:
    """How many spawned tasks have not ended."""
    return len(_running)


def _ended(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("task %s failed", task.get_name(), exc_info=error)
