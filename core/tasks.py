"""The only caller of `create_task`: tasks are kept alive and their failures are logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
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


def running(name: str | None = None) -> list[asyncio.Task[Any]]:
    """The spawned tasks that have not ended, all or those called `name`."""
    return [task for task in _running if name is None or task.get_name() == name]


def _ended(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("task %s failed", task.get_name(), exc_info=error)
