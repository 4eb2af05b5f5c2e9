"""A bound on retries, so that a failing fleet is not asked more than a healthy one. Pure.

Google SRE book, "Handling Overload": a client's retries stay below 10 % of its requests.
"""

from __future__ import annotations

WINDOW_S = 10


class RetryBudget:
    """Allows `ratio` of the exchanges of the last 10 seconds plus `floor` retries in that time.

    Counts by whole seconds in a ring. `now` is in monotonic seconds and does not go back.
    """

    def __init__(self, ratio: float = 0.1, floor: int = 10) -> None:
        self._ratio = ratio
        self._floor = floor
        self._second = 0
        self._started = [0] * WINDOW_S
        self._taken = [0] * WINDOW_S

    def __repr__(self) -> str:
        return f"<RetryBudget {sum(self._taken)} retries of {sum(self._started)} exchanges>"

    def started(self, now: float) -> None:
        """An exchange begins (its first try)."""
        second = int(now)
        if second != self._second:
            self._turn(second)
        self._started[second % WINDOW_S] += 1

    def take(self, now: float) -> bool:
        """True when one more retry is allowed; it is then counted."""
        second = int(now)
        if second != self._second:
            self._turn(second)
        if sum(self._taken) + 1 > self._floor + self._ratio * sum(self._started):
            return False
        self._taken[second % WINDOW_S] += 1
        return True

    def _turn(self, second: int) -> None:
        """Forget the seconds that left the window."""
        for stale in range(max(self._second + 1, second - WINDOW_S + 1), second + 1):
            self._started[stale % WINDOW_S] = 0
            self._taken[stale % WINDOW_S] = 0
        self._second = max(self._second, second)
