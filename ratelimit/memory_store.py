"""Buckets in the memory of this process: exact for one process, gone with it.

Owns no clock: it is given one. Needs no lease, as reservations die with the process too.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.clock import Clock
from ratelimit.bucket import UNITS, Level, Limit, change, full_at_us, refill
from ratelimit.plan import Amounts, Bucket, Plan
from ratelimit.store import Charge, Decision

SWEEP_AT_LEAST = 1024


class MemoryStore:
    """A dict of levels, and one of running streams, by key. Full buckets are forgotten whenever the
    dict has doubled."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._levels: dict[str, tuple[Limit, Level]] = {}
        self._streams: dict[str, int] = {}
        self._sweep_at = SWEEP_AT_LEAST

    def __repr__(self) -> str:
        return f"<MemoryStore {len(self._levels)} buckets>"

    async def start(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""

    def ready(self) -> str | None:
        return None

    def tick(self) -> None:
        """Nothing to do."""

    async def reserve(self, charge: Charge) -> Decision:
        now_us = self._now_us()
        plan, shadowed = charge.plan, 0
        levels = [self._level(bucket, now_us) for bucket in plan.buckets]
        lacking = {i for i, least in enumerate(charge.least) if levels[i][0] < least}
        if lacking - plan.shadows:
            return Decision(False, [level[0] for level in levels])
        taken: list[int | None] = [None] * len(levels)
        for i, bucket in enumerate(plan.buckets):
            if i in lacking:
                shadowed |= 1 << i
                continue
            amount = UNITS if bucket.concurrent else min(charge.asked[i], levels[i][0])
            taken[i] = amount
            levels[i] = self._take(bucket, levels[i], amount)
        charge.taken = taken
        if len(self._levels) >= self._sweep_at:
            self._sweep(now_us)
        return Decision(True, [level[0] for level in levels], shadowed)

    def progress(self, charge: Charge, used: Amounts) -> None:
        self._correct(charge, used, final=False)

    def settle(self, charge: Charge, used: Amounts) -> None:
        self._correct(charge, used, final=True)

    async def levels(self, plan: Plan) -> Sequence[int]:
        now_us = self._now_us()
        return [self._level(bucket, now_us)[0] for bucket in plan.buckets]

    async def reset(self, plan: Plan) -> None:
        for bucket in plan.buckets:
            self._levels.pop(bucket.key, None)
            self._streams.pop(bucket.key, None)

    def _correct(self, charge: Charge, used: Amounts, *, final: bool) -> None:
        """Charge what goes beyond what was taken; in the end give back the rest too."""
        now_us, taken = self._now_us(), charge.taken
        for i, bucket in enumerate(charge.plan.buckets):
            before = taken[i]
            if before is None or (bucket.concurrent and not final):
                continue
            difference = (0 if bucket.concurrent else used[i]) - before
            if difference > 0 or (final and difference):
                self._take(bucket, self._level(bucket, now_us), difference)
                taken[i] = before + difference

    def _now_us(self) -> int:
        return int(self._clock() * 1e6)

    def _level(self, bucket: Bucket, now_us: int) -> Level:
        if bucket.concurrent:
            return bucket.limit.capacity - self._streams.get(bucket.key, 0), now_us
        entry = self._levels.get(bucket.key)
        return refill(bucket.limit, entry and entry[1], now_us)

    def _take(self, bucket: Bucket, level: Level, amount: int) -> Level:
        key = bucket.key
        if bucket.concurrent:
            self._streams[key] = streams = max(0, self._streams.get(key, 0) + amount)
            if not streams:
                del self._streams[key]
            return bucket.limit.capacity - streams, level[1]
        level = change(bucket.limit, level, -amount)
        self._levels[key] = (bucket.limit, level)
        return level

    def _sweep(self, now_us: int) -> None:
        self._levels = {
            key: entry for key, entry in self._levels.items() if full_at_us(*entry) > now_us
        }
        self._sweep_at = max(SWEEP_AT_LEAST, 2 * len(self._levels))
