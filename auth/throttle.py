"""How often an address may ask, and how often it may fail to say who it is. Pure.

A token bucket for each address, kept as the one instant at which it is full again. Buckets that
were not used for the longest time make room for others: there is no more to gain by that than what
as many addresses have anyway.
"""

from __future__ import annotations

from collections import OrderedDict

MAX_ADDRESSES = 16_384


class AddressBuckets:
    """A bucket of `burst` for each network, filled at `per_s`. Instants in monotonic seconds."""

    __slots__ = ("_full_at", "_interval", "_limit", "_room")

    def __init__(self, per_s: float, burst: int, limit: int = MAX_ADDRESSES) -> None:
        self._interval = 1 / per_s
        self._room = (burst - 1) * self._interval
        self._limit = limit
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def __repr__(self) -> str:
        return f"<AddressBuckets {len(self._full_at)} of at most {self._limit}>"

    def wait_s(self, network: str, now: float) -> float:
        """Seconds until the bucket has one; 0 when it has."""
        full_at = self._full_at.get(network)
        return 0.0 if full_at is None else max(0.0, full_at - self._room - now)

    def take(self, network: str, now: float) -> float:
        """Take one, if it has one. Seconds until it has, as `wait_s`: 0 when it was taken."""
        wait_s = self.wait_s(network, now)
        if wait_s > 0 or not network:
            return wait_s
        self._full_at[network] = max(self._full_at.get(network, now), now) + self._interval
        self._full_at.move_to_end(network)
        if len(self._full_at) > self._limit:
            self._full_at.popitem(last=False)
        return 0.0
