"""How much each worker has to do, in memory that all of them read: one row per worker.

The owner of a row writes it, several times a second at least; whoever accepts a connection
compares. A row that has not been written for a while belongs to a worker that is stopped, stuck or
dead, and nobody waits for that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.shared_memory import CACHE_LINE, SharedRows

STALE_AFTER_S = 0.5
"""Rows are written every 0.1 s."""

_BEAT, _CONNECTIONS, _EXCHANGES, _RESIDENT, _ACCEPTING, _ACCEPTED = range(6)


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """One row as read. `beat_at` is on the monotonic clock, `resident_bytes` is memory."""

    beat_at: float
    connections: int
    exchanges: int
    resident_bytes: int
    accepting: bool


class LoadCell:
    """One worker's row, for its owner; cleared by the supervisor after the owner's death."""

    __slots__ = ("_floats", "_words", "index")

    def __init__(self, index: int, row: memoryview) -> None:
        self.index = index
        self._words = row.cast("Q")
        self._floats = row.cast("d")

    def __repr__(self) -> str:
        return f"<LoadCell {self.index} {self.read()}>"

    @property
    def connections(self) -> int:
        return self._words[_CONNECTIONS]

    @property
    def accepted(self) -> int:
        """How many connections this worker has ever accepted."""
        return self._words[_ACCEPTED]

    @property
    def resident_bytes(self) -> int:
        return self._words[_RESIDENT]

    def beat(self, now: float) -> None:
        """Say that the event loop still turns."""
        self._floats[_BEAT] = now

    def set_resident_bytes(self, count: int) -> None:
        self._words[_RESIDENT] = count

    def count_accepted(self) -> None:
        self._words[_ACCEPTED] += 1

    def set_connections(self, count: int) -> None:
        self._words[_CONNECTIONS] = count

    def set_exchanges(self, count: int) -> None:
        self._words[_EXCHANGES] = count

    def set_accepting(self, accepting: bool) -> None:
        self._words[_ACCEPTING] = accepting

    def read(self) -> WorkerLoad:
        words = self._words
        return WorkerLoad(
            self._floats[_BEAT],
            words[_CONNECTIONS],
            words[_EXCHANGES],
            words[_RESIDENT],
            bool(words[_ACCEPTING]),
        )

    def clear(self) -> None:
        self._words[:] = memoryview(bytes(CACHE_LINE)).cast("Q")

    def live_load(self, now: float) -> int | None:
        """What a new connection would come on top of; None: this worker takes none now.

        Many exchanges can share a connection of HTTP/2, and many connections can be idle: the
        larger of the two counts."""
        words = self._words
        if not words[_ACCEPTING] or now - self._floats[_BEAT] > STALE_AFTER_S:
            return None
        return max(words[_CONNECTIONS], words[_EXCHANGES])


class LoadBoard:
    """The rows of all workers. Made before the fork."""

    def __init__(self, workers: int) -> None:
        rows = SharedRows(workers, CACHE_LINE)
        self._cells = [LoadCell(index, rows.row(index)) for index in range(workers)]

    def __repr__(self) -> str:
        return f"<LoadBoard {self._cells}>"

    def for_worker(self, index: int) -> LoadCell:
        return self._cells[index]

    def others(self, index: int) -> Sequence[LoadCell]:
        """The rows of all workers but one."""
        return [cell for cell in self._cells if cell.index != index]

    def connections(self) -> int:
        """Open connections of all workers, stopped ones too: theirs are open nevertheless."""
        return sum(cell.connections for cell in self._cells)

    def resident_bytes(self) -> int:
        return sum(cell.resident_bytes for cell in self._cells)
