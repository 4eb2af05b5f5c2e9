"""What each worker has given each replica to do, in memory that all of them read.

For each place (of a replica) and each quantity there is a row of words, one for each worker, which
that worker writes; whoever decides adds them up. The supervisor clears a dead worker's words.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    Words: TypeAlias = memoryview[int]
else:
    Words = memoryview

QUANTITIES = 3


class SharedLedger:
    """Zeroed memory for `workers` workers and `places` replicas, made before the fork."""

    def __init__(self, workers: int, places: int) -> None:
        self.workers = workers
        self.places = places
        self._words: Words = memoryview(
            mmap.mmap(-1, 8 * workers * QUANTITIES * max(places, 1))
        ).cast("q")

    def __repr__(self) -> str:
        return f"<SharedLedger {self.places} places, {self.workers} workers>"

    def place(self, place: int) -> Words:
        """The words of one place: those of all workers for the first quantity, for the second, and
        for the third. Raises IndexError outside 0..places-1."""
        if not 0 <= place < self.places:
            raise IndexError(f"place {place} of {self.places}")
        size = self.workers * QUANTITIES
        return self._words[place * size : (place + 1) * size]

    def clear(self, worker: int) -> None:
        """It has died."""
        count = self.places * QUANTITIES
        self._words[worker :: self.workers] = memoryview(bytes(8 * count)).cast("q")
