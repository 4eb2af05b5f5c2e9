"""When to stop calling a failing store, and when to try it again. Pure."""

from __future__ import annotations

FIRST_RETRY_S = 0.05
STEADY_S = 5.0
"""A connection that held this long is followed by an immediate retry."""


class Circuit:
    """Opens after `threshold` failures in a row; retries back off up to `retry_max_s` seconds."""

    def __init__(self, threshold: int, retry_max_s: float) -> None:
        self.failures = 0
        self._threshold = threshold
        self._retry_max_s = retry_max_s
        self._attempts = 0
        self._closed_at: float | None = None

    def __repr__(self) -> str:
        return f"<Circuit {self.failures} failures, {self._attempts} attempts>"

    def failed(self) -> bool:
        """Count a failure. True: leave the store alone."""
        self.failures += 1
        return self.failures >= self._threshold

    def succeeded(self) -> None:
        self.failures = 0

    def closed(self, now: float) -> None:
        """The store answers (again)."""
        self._closed_at = now
        self.failures = 0

    def opened(self, now: float) -> None:
        """The store was given up."""
        if self._closed_at is not None and now - self._closed_at >= STEADY_S:
            self._attempts = 0
        self._closed_at = None

    def retry_in_s(self, random: float) -> float:
        """Seconds until the next attempt, which this counts; `random` in 0..1 spreads them."""
        attempt = self._attempts
        self._attempts += 1
        if attempt == 0:
            return 0.0
        delay_s = min(self._retry_max_s, FIRST_RETRY_S * 2.0 ** min(attempt - 1, 30))
        return delay_s * (0.5 + 0.5 * random)
