"""How many lives each process of a gateway has had, in memory that all of them read.

The supervisor counts a death when it has reaped the process, and only then starts the next one. So
a number tells one life from another, and whether it is over.
"""

from __future__ import annotations

from core.shared_memory import SharedRows


class SharedLives:
    """For `count` processes. Made before the fork."""

    def __init__(self, count: int) -> None:
        self._words = SharedRows(1, 8 * count).row(0).cast("Q")

    def __repr__(self) -> str:
        return f"<SharedLives {self._words.tolist()}>"

    def of(self, index: int) -> int:
        """The number of the life that it lives, or is to live next."""
        return self._words[index]

    def ended(self, index: int) -> None:
        """For the supervisor."""
        self._words[index] += 1
