"""Buckets in the memory of this process: exact for one process, gone with it.

Owns no clock: it is given one. Needs no lease, as reservations die with the process too.
"""

from __future__ import annotations

from core.clock import Clock
from ratelimit.bucket import Level, Limit, change, is_full, refill
from ratelimit.plan import Amounts
from ratelimit.store import Charge, Decision

SWEEP_AT_LEAST = 1024


class MemoryStore:
    """A dict of levels. Full buckets are forgotten whenever the dict has doubled."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._levels: dict[tuple[str, str], tuple[Limit, Level]] = {}
        self._sweep_at = SWEEP_AT_LEAST

    def __repr__(self) -> str:
        return f"<MemoryStore {len(self._levels)} buckets>"

    async def start(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""

    def ready(self) -> str | None:
        return None

    async def reserve(self, charge: Charge) -> Decision:
        now_us = int(self._clock() * 1e6)
        plan, amounts, stored = charge.plan, charge.amounts, self._levels
        tenant, levels, granted = plan.tenant, [], True
        for bucket, amount in zip(plan.buckets, amounts, strict=True):
            entry = stored.get((tenant, bucket.key))
            level = refill(bucket.limit, entry and entry[1], now_us)
            levels.append(level)
            granted = granted and level[0] >= amount
        if granted:
            for i, bucket in enumerate(plan.buckets):
                levels[i] = level = change(bucket.limit, levels[i], -amounts[i])
                stored[tenant, bucket.key] = (bucket.limit, level)
            if len(stored) >= self._sweep_at:
                self._sweep(now_us)
        return Decision(granted, [level[0] for level in levels])

    def settle(self, charge: Charge, used: Amounts) -> None:
        now_us = int(self._clock() * 1e6)
        plan = charge.plan
        for bucket, reserved, spent in zip(plan.buckets, charge.amounts, used, strict=True):
            if reserved == spent:
                continue
            entry = self._levels.get((plan.tenant, bucket.key))
            level = refill(bucket.limit, entry and entry[1], now_us)
            level = change(bucket.limit, level, reserved - spent)
            self._levels[plan.tenant, bucket.key] = (bucket.limit, level)

    def _sweep(self, now_us: int) -> None:
        self._levels = {
            key: (limit, level)
            for key, (limit, level) in self._levels.items()
            if not is_full(limit, level, now_us)
        }
        self._sweep_at = max(SWEEP_AT_LEAST, 2 * len(self._levels))
