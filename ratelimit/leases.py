"""The reservations that run in this process: they report to their store while they run. Performs.

One timer serves all. Each reports what it has used about once a second, and when nothing is new
about three times per lease, so that the store knows it to be alive. One that had nothing new is
asked less often: thousands of streams that say nothing must not cost as much as talking ones. The
reports of one tick travel in one write.
"""

from __future__ import annotations

import asyncio
from itertools import takewhile
from typing import Final

from core.clock import Clock
from ratelimit.reservation import Reservation
from ratelimit.store import Charge, Store

REPORT_S: Final = 1.0
QUIET_S: Final = 5.0
TICK_S: Final = 0.25


class Leases:
    """What is held of `store`, for `lease_s` without a sign of life, and of stores beside it."""

    def __init__(self, store: Store, lease_s: float, clock: Clock) -> None:
        self.store = store
        self._renew_s = lease_s / 3
        self._report_s = min(REPORT_S, self._renew_s)
        self._clock = clock
        self._quiet_s = max(self._report_s, min(QUIET_S, self._renew_s / 10))
        self._due_at: dict[Reservation, float] = {}
        self._quiet_due_at: dict[Reservation, float] = {}
        self._ticker: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Leases {len(self)} running, {self.store!r}>"

    def __len__(self) -> int:
        return len(self._due_at) + len(self._quiet_due_at)

    async def start(self) -> None:
        """Returns also when the store cannot be reached: it is tried on in the background."""
        await self.store.start()
        self._ticker = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    async def close(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        await self.store.close()

    def hold(self, reservation: Reservation, store: Store, charge: Charge) -> Reservation:
        """`charge` was granted by `store`, for this reservation."""
        now = self._clock()
        reservation.hold(store, charge, self._ended, now)
        self._due_at[reservation] = now + self._report_s
        return reservation

    def report(self) -> None:
        """Let those report whose turn it is."""
        now = self._clock()
        for waiting in (self._due_at, self._quiet_due_at):
            for reservation in _due(waiting, now):
                del waiting[reservation]
                if reservation.report(now, self._renew_s):
                    self._due_at[reservation] = now + self._report_s
                else:
                    self._quiet_due_at[reservation] = now + self._quiet_s

    def _ended(self, reservation: Reservation) -> None:
        self._due_at.pop(reservation, None)
        self._quiet_due_at.pop(reservation, None)

    def _tick(self) -> None:
        self._ticker = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        self.store.tick()
        self.report()


def _due(waiting: dict[Reservation, float], now: float) -> list[Reservation]:
    """All have the same period, so they stand in order."""
    return list(takewhile(lambda reservation: waiting[reservation] <= now, waiting))
