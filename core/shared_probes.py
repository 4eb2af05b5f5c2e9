"""What the workers of a host found out about each replica, in memory that all of them read: so that
one of them asks, and all know. Each row has one writer, its worker; instants are monotonic seconds,
which all processes of a host count alike, and are written last.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, TypeAlias

from core.replica import Load

if TYPE_CHECKING:
    Row: TypeAlias = memoryview[float]
else:
    Row = memoryview

_ROW = 16
_PROBE_BEGUN, _PROBED, _RESULT, _DOUBTED = range(4)
_SCRAPE_BEGUN, _SCRAPED, _RUNNING, _WAITING, _KV_USE, _KV_TOKENS = range(4, 10)


class SharedProbes:
    """Zeroed memory for `workers` workers and `places` replicas, made before the fork."""

    def __init__(self, workers: int, places: int) -> None:
        self.workers = workers
        self.places = places
        self._words: Row = memoryview(mmap.mmap(-1, 8 * _ROW * workers * max(places, 1))).cast("d")

    def __repr__(self) -> str:
        return f"<SharedProbes {self.places} places, {self.workers} workers>"

    def cell(self, place: int, worker: int) -> ProbeCell:
        """What `worker` sees and says of the replica in `place`. Raises IndexError outside
        0..places-1."""
        if not 0 <= place < self.places:
            raise IndexError(f"place {place} of {self.places}")
        size = _ROW * self.workers
        words = self._words[place * size : (place + 1) * size]
        rows = [words[_ROW * number : _ROW * (number + 1)] for number in range(self.workers)]
        return ProbeCell(rows, worker)


class ProbeCell:
    """One replica, as one worker sees it."""

    __slots__ = ("_own", "_rows")

    def __init__(self, rows: list[Row], worker: int) -> None:
        self._rows = rows
        self._own = rows[worker]

    def __repr__(self) -> str:
        return f"<ProbeCell probed at {self.probed()[0]:.3f}>"

    def begin_probe(self, now: float) -> None:
        """This worker is asking how the replica is."""
        self._own[_PROBE_BEGUN] = now

    def probe_begun_at(self) -> float:
        """When any worker last began to."""
        return max([row[_PROBE_BEGUN] for row in self._rows])

    def put_probe(self, result: int, now: float) -> None:
        self._own[_RESULT] = result
        self._own[_PROBED] = now

    def probed(self) -> tuple[float, int]:
        """When any worker last had an answer, and what it was; at 0.0: never."""
        row = max(self._rows, key=_probed_at)
        return row[_PROBED], int(row[_RESULT])

    def doubt(self, now: float) -> None:
        """Exchanges of this worker with the replica fail."""
        self._own[_DOUBTED] = now

    def doubted_at(self) -> float:
        return max([row[_DOUBTED] for row in self._rows])

    def begin_scrape(self, now: float) -> None:
        self._own[_SCRAPE_BEGUN] = now

    def scrape_begun_at(self) -> float:
        return max([row[_SCRAPE_BEGUN] for row in self._rows])

    def put_load(self, load: Load) -> None:
        own = self._own
        own[_RUNNING], own[_WAITING], own[_KV_USE] = load.running, load.waiting, load.kv_use
        own[_KV_TOKENS] = -1.0 if load.kv_tokens is None else load.kv_tokens
        own[_SCRAPED] = load.observed_at

    def load(self) -> Load | None:
        """What any worker last read of its metrics."""
        row = max(self._rows, key=_scraped_at)
        if not row[_SCRAPED]:
            return None
        tokens = int(row[_KV_TOKENS])
        kv_tokens = None if tokens < 0 else tokens
        return Load(row[_RUNNING], row[_WAITING], row[_KV_USE], row[_SCRAPED], kv_tokens)


def _probed_at(row: Row) -> float:
    return row[_PROBED]


def _scraped_at(row: Row) -> float:
    return row[_SCRAPED]
