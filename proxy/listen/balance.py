"""Which of the workers that share a listening socket takes the next connection.

The kernel wakes them all, and the quickest would take most. So a worker that has more than the
least loaded one steps back for a moment and leaves the connection to that one. If those with less
to do take nothing meanwhile, it does so only a few times: one that does not come must keep nobody
waiting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from core.load_board import LoadCell

STEP_BACK_S = 0.001
MOST_STEPS = 30
"""So many steps back while those with less to do take nothing; then the connection is taken."""
MOST_IGNORED = 64
"""The next time two are taken before those are waited for again, then four, up to so many."""
_SAME_WAIT_S = 0.05
_SLACK = 0.02


class Balance:
    """One worker's manners towards the others."""

    def __init__(self, mine: LoadCell, others: Sequence[LoadCell]) -> None:
        self._mine = mine
        self._others = [_Other(cell) for cell in others]
        self._steps = 0
        self._stepped_at = 0.0

    def __repr__(self) -> str:
        return f"<Balance {self._mine!r} steps={self._steps}>"

    def steps_back(self, now: float) -> bool:
        """Whether to leave the connection that waits to another worker for STEP_BACK_S."""
        mine = self._mine.live_load(now)
        if mine is None or not self._others:
            return False
        below = [(load, other) for other in self._others if (load := other.load(now)) < mine]
        least = min([load for load, _ in below], default=mine)
        if mine <= least + _SLACK * least:
            # Exact where few make a difference; where they do not, without waiting for each other.
            self._steps = 0
            return False
        moved = [other.has_moved() for _, other in below]
        if any(moved) or now - self._stepped_at > _SAME_WAIT_S:
            self._steps = 0
        if self._steps >= MOST_STEPS:
            self._steps = 0
            for _, other in below:
                other.give_up()
            return False
        self._steps += 1
        self._stepped_at = now
        return True


class _Other:
    """Another worker, seen from this one."""

    __slots__ = ("_cell", "_given_up", "_ignored", "_seen")

    def __init__(self, cell: LoadCell) -> None:
        self._cell = cell
        self._seen = 0
        self._given_up = 0  # connections that were taken when it last did not come
        self._ignored = 0

    def __repr__(self) -> str:
        return f"<_Other {self._cell!r}>"

    def load(self, now: float) -> float:
        """Infinite when nothing is to be left to it."""
        if self._ignored:
            self._ignored -= 1
            return math.inf
        load = self._cell.live_load(now)
        return math.inf if load is None else load

    def give_up(self) -> None:
        """It does not come: this connection is taken, and more if that is not the first time."""
        self._given_up = min(2 * self._given_up or 1, MOST_IGNORED)
        self._ignored = self._given_up - 1

    def has_moved(self) -> bool:
        """Whether it has accepted something since the last look."""
        before, self._seen = self._seen, self._cell.accepted
        if self._seen == before:
            return False
        self._given_up = 0
        return True
