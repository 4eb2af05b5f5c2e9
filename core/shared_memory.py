"""Memory that a supervisor and the workers it forks see together.

An anonymous shared mapping made before the fork is cut into equal rows. Every 8-byte word has one
writer (the owner of its row; the supervisor once that owner is dead) and any number of readers. An
aligned word is stored and loaded whole, so readers need no lock; what spans several words is
published by writing one word last.
"""

from __future__ import annotations

import enum
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

CACHE_LINE = 64
"""Bytes; rows start on a multiple of this, so that no two writers share a line."""


class SharedRows:
    """`count` zeroed rows of `size` bytes (rounded up to whole cache lines)."""

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.size = -(-size // CACHE_LINE) * CACHE_LINE
        self._view = memoryview(mmap.mmap(-1, max(1, count) * self.size))

    def __repr__(self) -> str:
        return f"<SharedRows {self.count} x {self.size} bytes>"

    def row(self, index: int) -> memoryview:
        """The bytes of one row, writable. Raises IndexError outside 0..count-1."""
        if not 0 <= index < self.count:
            raise IndexError(f"row {index} of {self.count}")
        return self._view[index * self.size : (index + 1) * self.size]


class WorkerState(enum.IntEnum):
    """What a worker says of itself. ABSENT: never started, or dead and not yet forked again."""

    ABSENT = 0
    STARTING = 1
    READY = 2
    NOT_READY = 3
    DRAINING = 4


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker's words as read. `beat_at` is on the monotonic clock, 0.0 before the first."""

    index: int
    state: WorkerState
    pid: int
    beat_at: float


class StateCell:
    """The state words of one worker, written by that worker alone (and cleared after its death)."""

    __slots__ = ("_floats", "_words", "index")

    def __init__(self, index: int, row: memoryview) -> None:
        self.index = index
        self._words = row.cast("Q")
        self._floats = row.cast("d")

    def __repr__(self) -> str:
        return f"<StateCell {self.read()}>"

    def publish(self, state: WorkerState, pid: int, now: float) -> None:
        """Say the state; also a heartbeat. The state is written last."""
        self._words[1] = pid
        self._floats[2] = now
        self._words[0] = state

    def beat(self, now: float) -> None:
        """Say that the event loop still turns."""
        self._floats[2] = now

    def read(self) -> WorkerStatus:
        state = WorkerState(self._words[0])
        return WorkerStatus(self.index, state, self._words[1], self._floats[2])

    def clear(self) -> None:
        """Back to ABSENT: for the supervisor, after the owner's death."""
        self._words[0] = WorkerState.ABSENT
        self._words[1] = 0
        self._floats[2] = 0.0


class StateBoard:
    """Every worker's state, so that any of them can answer for all. Made before the fork."""

    def __init__(self, workers: int) -> None:
        rows = SharedRows(workers, CACHE_LINE)
        self._cells = [StateCell(index, rows.row(index)) for index in range(workers)]

    def __repr__(self) -> str:
        return f"<StateBoard {[status.state.name for status in self.read()]}>"

    def for_worker(self, index: int) -> StateCell:
        return self._cells[index]

    def read(self) -> list[WorkerStatus]:
        return [cell.read() for cell in self._cells]


def unready_reasons(
    statuses: Sequence[WorkerStatus], now: float, stale_after_s: float = 10.0
) -> list[str]:
    """Why these workers together should get no traffic; empty when they may.

    A worker that starts or drains accepts no connections and so does no harm, as long as another
    one is ready. One that accepts but cannot serve, or whose loop has stopped, does.
    """
    reasons = []
    ready = 0
    for status in statuses:
        if status.state is WorkerState.NOT_READY:
            reasons.append(f"worker {status.index} is not ready")
        elif status.state is WorkerState.READY:
            silent_s = now - status.beat_at
            if silent_s > stale_after_s:
                reasons.append(f"worker {status.index} has been silent for {silent_s:.0f} s")
            else:
                ready += 1
    if not ready and not reasons:
        states = ", ".join(f"{s.index} {s.state.name.lower()}" for s in statuses)
        reasons.append(f"no worker is ready ({states})")
    return reasons
