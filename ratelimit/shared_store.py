"""Buckets that the workers of one host share, in memory made before they were forked.

A call locks the shard of its plan for some ten microseconds (a POSIX record lock, which the kernel
gives up for a process that dies), so it is exact whichever worker makes it. A worker that is
stopped in that moment does not hold up the others: they try for LOCK_S and then count the store as
not available. What a worker's requests hold comes back when it is replaced, or within one lease.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from typing import Final
from zlib import crc32

from core.clock import Clock
from core.shared_memory import SharedRows
from ratelimit.plan import Amounts, Plan
from ratelimit.shared_table import SharedTable
from ratelimit.store import Charge, Decision, StoreUnavailable

LOCK_S: Final = 0.005
_SILENT: Final = 2 / 3
"""Of a lease, after which a worker is taken for dead: so that all is back within one."""
_EAGER: Final = 20
_PAUSE_S: Final = 0.00005


class SharedBuckets:
    """The memory and its locks, for `workers` workers. `served`: those whose stores this process
    has started."""

    def __init__(self, workers: int) -> None:
        self.table = SharedTable(workers)
        self.lock_file = _anonymous_file()
        self.beats = SharedRows(workers, 8)
        self.served: set[int] = set()

    def __repr__(self) -> str:
        return f"<SharedBuckets {self.table!r}>"


class SharedStore:
    """A `Store` as one worker sees it. `clock` is the monotonic clock, the same for all workers."""

    def __init__(
        self, buckets: SharedBuckets, worker: int, lease_s: float, clock: Clock = time.monotonic
    ) -> None:
        self._served = buckets.served
        self._table = table = buckets.table
        self._shards = [table.shard(index, worker) for index in range(table.shards)]
        self._lock_file = buckets.lock_file
        self._beats = [buckets.beats.row(i).cast("d") for i in range(table.workers)]
        self._worker = worker
        self._lease_s = lease_s
        self._clock = clock
        self._look_at = 0.0
        self._late: deque[tuple[Charge, Amounts]] = deque()

    def __repr__(self) -> str:
        return f"<SharedStore worker {self._worker} of {self._table!r}>"

    async def start(self) -> None:
        if self._worker not in self._served:
            self._served.add(self._worker)
            self._release(self._worker)  # what a predecessor held that died
        self.tick()

    async def close(self) -> None:
        self._settle_late()
        self._beats[self._worker][0] = 0.0

    def ready(self) -> str | None:
        return None

    def tick(self) -> None:
        """Be alive, and look for those who are not."""
        now = self._clock()
        self._beats[self._worker][0] = now
        self._settle_late()
        if now >= self._look_at:
            self._look_at = now + self._lease_s / 10
            for worker, beat in enumerate(self._beats):
                silent_s = now - beat[0] if beat[0] else 0.0
                if silent_s > self._lease_s * _SILENT and self._release(worker):
                    beat[0] = 0.0

    async def reserve(self, charge: Charge) -> Decision:
        shard = self._lock(charge.plan)
        try:
            return self._shards[shard].reserve(charge, self._now_us())
        finally:
            self._unlock(shard)

    def progress(self, charge: Charge, used: Amounts) -> None:
        self._correct(charge, used, final=False)

    def settle(self, charge: Charge, used: Amounts) -> None:
        if not self._correct(charge, used, final=True):
            self._late.append((charge, used))

    async def levels(self, plan: Plan) -> Sequence[int]:
        shard = self._lock(plan)
        try:
            return self._shards[shard].levels(plan.buckets, self._now_us())
        finally:
            self._unlock(shard)

    async def reset(self, plan: Plan) -> None:
        shard = self._lock(plan)
        try:
            self._shards[shard].reset(plan.buckets, self._now_us())
        finally:
            self._unlock(shard)

    def _now_us(self) -> int:
        return int(self._clock() * 1e6)

    def _correct(self, charge: Charge, used: Amounts, *, final: bool) -> bool:
        try:
            shard = self._lock(charge.plan)
        except StoreUnavailable:
            return False
        try:
            self._shards[shard].correct(charge, used, self._now_us(), final=final)
        except StoreUnavailable:
            pass  # its bucket has gone, and there is no room for it: nothing to correct
        finally:
            self._unlock(shard)
        return True

    def _settle_late(self) -> None:
        """What could not be settled, as the shard was locked for too long."""
        while self._late and self._correct(*self._late[0], final=True):
            self._late.popleft()

    def _release(self, worker: int) -> bool:
        """Give back all that a worker holds."""
        for shard in range(self._table.shards):
            try:
                self._lock_shard(shard)
            except StoreUnavailable:
                return False
            try:
                self._table.shard(shard, worker).release()
            finally:
                self._unlock(shard)
        return True

    def _lock(self, plan: Plan) -> int:
        shard = crc32(plan.tag.encode("ascii")) % self._table.shards
        self._lock_shard(shard)
        return shard

    def _lock_shard(self, shard: int) -> None:
        """Raises StoreUnavailable when somebody keeps it for longer than any call takes."""
        give_up_at, tries = 0.0, 0
        while True:
            try:
                fcntl.lockf(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, shard)
                break
            except OSError:
                now = time.monotonic()
                give_up_at = give_up_at or now + LOCK_S
                if now > give_up_at:
                    raise StoreUnavailable("locked") from None
            tries += 1
            if tries < _EAGER:
                os.sched_yield()
            else:
                time.sleep(_PAUSE_S)
        self._shards[shard].recover()

    def _unlock(self, shard: int) -> None:
        fcntl.lockf(self._lock_file, fcntl.LOCK_UN, 1, shard)


def _anonymous_file() -> int:
    """A file without a name, for its locks alone."""
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
