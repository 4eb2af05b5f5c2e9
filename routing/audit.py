"""A replica's own report against our ledger: traffic that we did not send. Pure.

Reports only audit. They are late, and after some seconds without a new one they count for
nothing (fail open to our own counts).
"""

from __future__ import annotations

from core.replica import Load

_TOLERANCE = 0.2
_LEAST = 2.0
_REPORTS = 3
_FORGET_S = 10.0


class Audit:
    """`in_flight` and `waiting` are the requests of others, 0 until three reports agree."""

    __slots__ = ("_observed_at", "_strikes", "in_flight", "waiting")

    def __init__(self) -> None:
        self._observed_at = float("-inf")
        self._strikes = 0
        self.in_flight = 0.0
        self.waiting = 0.0

    def __repr__(self) -> str:
        return f"<Audit {self.in_flight:.0f} foreign, {self.waiting:.0f} waiting>"

    def take(self, load: Load | None, own_in_flight: int, now: float) -> None:
        """Compare the last report (None: there is none) with our own count."""
        if load is None or now - load.observed_at > _FORGET_S:
            self._strikes = 0
            self.in_flight = self.waiting = 0.0
            return
        if load.observed_at == self._observed_at:
            return
        self._observed_at = load.observed_at
        reported = load.running + load.waiting
        surplus = reported - own_in_flight
        if surplus <= max(_TOLERANCE * own_in_flight, _LEAST):
            self._strikes = 0
            self.in_flight = self.waiting = 0.0
            return
        self._strikes += 1
        if self._strikes >= _REPORTS:
            self.in_flight = surplus
            self.waiting = min(load.waiting, surplus)
