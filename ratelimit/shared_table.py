"""Buckets in memory that processes share: an open-addressed table of 64-bit words. Pure.

The table is cut into shards; whoever touches a shard holds its lock (`shared_store.py`). A bucket's
row has its hash, level, instant, the instant from which on it is full (its row may then serve
another bucket), and for each worker what that worker's running requests hold of it: reserved and
not used, or for concurrent streams the slots taken. So what a dead worker held can be given back.

A worker may die between two words. Before a row is changed its old content goes into the shard's
journal; whoever locks the shard next undoes what was not committed.
"""

from __future__ import annotations

import mmap
from typing import Final

from ratelimit.bucket import UNITS, Level, change, full_at_us, refill
from ratelimit.plan import Amounts, Bucket
from ratelimit.store import Charge, Decision, StoreUnavailable

SHARDS: Final = 16
ROWS: Final = 16_384
"""In each shard. Memory is used where rows are: a page for the first bucket in it."""
PROBES: Final = 16
JOURNAL: Final = 128
"""Rows that one call may change."""
_HASH, _LEVEL, _AT, _FULL_AT, _HELD = range(5)
_ENTRY: Final = 7
_CLAIM_US: Final = 1_000_000


class SharedTable:
    """Zeroed memory for `workers` workers; to be made before they are forked."""

    def __init__(self, workers: int, shards: int = SHARDS, rows: int = ROWS) -> None:
        self.workers = workers
        self.shards = shards
        self.rows = rows
        self._shard_words = 1 + JOURNAL * _ENTRY + workers + rows * (_HELD + workers)
        self._words = memoryview(mmap.mmap(-1, 8 * shards * self._shard_words)).cast("q")

    def __repr__(self) -> str:
        return f"<SharedTable {self.shards} x {self.rows} rows for {self.workers} workers>"

    def shard(self, index: int, worker: int) -> Shard:
        """A shard in the hands of one worker."""
        start = index * self._shard_words
        words = self._words[start : start + self._shard_words]
        return Shard(words, self.workers, worker, self.rows)


class Shard:
    """`words`: the count of the journal's entries, the entries, for each worker how often it was
    taken for dead (its generation), and the rows."""

    def __init__(self, words: memoryview, workers: int, worker: int, rows: int) -> None:
        self._words = words
        self._worker = worker
        self._rows = rows
        self._width = _HELD + workers
        self._start = 1 + JOURNAL * _ENTRY + workers
        self._generation_at = self._start - workers + worker

    def __repr__(self) -> str:
        return f"<Shard of {self._rows} rows for worker {self._worker}>"

    def recover(self) -> None:
        """Undo what a worker that died had begun. To be called whenever the lock was taken."""
        words = self._words
        if not words[0]:
            return
        for number in reversed(range(words[0])):
            at = 1 + _ENTRY * number
            base, worker = words[at], words[at + 5]
            words[base : base + _HELD] = words[at + 1 : at + 5]
            words[base + _HELD + worker] = words[at + 6]
        words[0] = 0

    def reserve(self, charge: Charge, now_us: int) -> Decision:
        """As `Store.reserve`; notes in `charge` what was taken. Raises StoreUnavailable when there
        is no room for another bucket."""
        buckets, least, asked = charge.plan.buckets, charge.least, charge.asked
        bases = self._find_all(buckets, now_us)
        levels = [self._level(base, b, now_us) for base, b in zip(bases, buckets, strict=True)]
        shadowed = 0
        taken: list[int | None] = []
        for i, bucket in enumerate(buckets):
            level = levels[i][0]
            if level >= least[i]:
                taken.append(UNITS if bucket.concurrent else min(asked[i], level))
            elif bucket.rule.shadow:
                shadowed |= 1 << i
                taken.append(None)
            else:
                self._words[0] = 0
                return Decision(False, [level[0] for level in levels])
        for i, amount in enumerate(taken):
            if amount is not None:
                levels[i] = self._change(bases[i], buckets[i], levels[i], amount, amount)
        self._words[0] = 0
        charge.taken, charge.holder = taken, self._words[self._generation_at]
        return Decision(True, [level[0] for level in levels], shadowed)

    def correct(self, charge: Charge, used: Amounts, now_us: int, *, final: bool) -> None:
        """Charge what goes beyond what was taken; in the end give back the rest too."""
        buckets = charge.plan.buckets
        bases = self._find_all(buckets, now_us)
        generation = self._words[self._generation_at]
        lapsed = charge.holder != generation
        after: list[int | None] = []
        for i, bucket in enumerate(buckets):
            before, told = charge.taken[i], charge.used[i]
            if before is None:
                after.append(None)
                continue
            if bucket.concurrent:
                amount = 0 if final else UNITS
                difference = hold = amount - (0 if lapsed else before)
            else:
                held = 0 if lapsed else max(0, before - told)
                before = told if lapsed else before
                amount = used[i] if final else max(before, used[i])
                difference = amount - before
                hold = -held if final else amount - max(told, used[i]) - held
            after.append(amount)
            if difference or hold:
                level = self._level(bases[i], bucket, now_us)
                self._change(bases[i], bucket, level, difference, hold)
        self._words[0] = 0
        charge.taken, charge.holder = after, generation

    def levels(self, buckets: tuple[Bucket, ...], now_us: int) -> list[int]:
        bases = self._find_all(buckets, now_us)
        self._words[0] = 0
        return [self._level(base, b, now_us)[0] for base, b in zip(bases, buckets, strict=True)]

    def reset(self, buckets: tuple[Bucket, ...], now_us: int) -> None:
        """Fill them. What is held of them stays held."""
        for base, bucket in zip(self._find_all(buckets, now_us), buckets, strict=True):
            self._write(base, bucket.hash, (bucket.limit.capacity, now_us), 0, 0)
        self._words[0] = 0

    def release(self) -> None:
        """Give back what the worker holds: it has died, or been silent for so long that it must
        take itself for dead."""
        words, start = self._words, self._start
        words[self._generation_at] += 1
        column = words[start + _HELD + self._worker :: self._width].tolist()
        for row, held in enumerate(column):
            if held:
                base = start + row * self._width
                level = words[base + _LEVEL] + held, words[base + _AT]
                self._write(base, words[base], level, words[base + _FULL_AT], -held)
                words[0] = 0

    def _find_all(self, buckets: tuple[Bucket, ...], now_us: int) -> list[int]:
        if len(buckets) > JOURNAL // 2:
            raise StoreUnavailable("too_many_buckets")
        words, bases = self._words, list[int]()
        for bucket in buckets:
            wanted = bucket.hash
            base = self._start + wanted % self._rows * self._width
            if words[base] != wanted:  # by far most are in their first place
                base = self._find(wanted, now_us, bases)
                if base < 0:
                    words[0] = 0
                    raise StoreUnavailable("full")
                if words[base] != wanted:
                    level = bucket.limit.capacity, now_us
                    self._write(base, wanted, level, now_us + _CLAIM_US, 0)
            bases.append(base)
        return bases

    def _find(self, wanted: int, now_us: int, others: list[int]) -> int:
        """Where the row of this bucket is, or one that may become it: never used, full, or of those
        that nobody holds anything of the one that will be full first. -1: there is none."""
        words, width, rows = self._words, self._width, self._rows
        place, found, found_at = wanted % rows, -1, 1 << 62
        for _ in range(PROBES):
            base = self._start + place * width
            here = words[base]
            if here == wanted:
                return base
            if here == 0:
                return base if found_at > now_us else found
            full_at = words[base + _FULL_AT]
            if full_at < found_at and base not in others and not self._held(base):
                found, found_at = base, full_at
            place = place + 1 if place + 1 < rows else 0
        return found

    def _held(self, base: int) -> int:
        return sum(self._words[base + _HELD : base + self._width])

    def _level(self, base: int, bucket: Bucket, now_us: int) -> Level:
        if bucket.concurrent:
            return bucket.limit.capacity - self._held(base), now_us
        return refill(bucket.limit, (self._words[base + _LEVEL], self._words[base + _AT]), now_us)

    def _change(self, base: int, bucket: Bucket, level: Level, amount: int, hold: int) -> Level:
        if bucket.concurrent:
            self._write(base, bucket.hash, (0, 0), 0, hold)
            return level[0] - hold, level[1]
        level = change(bucket.limit, level, -amount)
        self._write(base, bucket.hash, level, full_at_us(bucket.limit, level), hold)
        return level

    def _write(self, base: int, key: int, level: Level, full_at: int, hold: int) -> None:
        """The row's new content, `hold` more held by the worker; the old one into the journal."""
        words, number, worker = self._words, self._words[0], self._worker
        at, held = 1 + _ENTRY * number, base + _HELD + worker
        before = words[held]
        words[at] = base
        words[at + 1 : at + 5] = words[base : base + _HELD]
        words[at + 5] = worker
        words[at + 6] = before
        words[0] = number + 1
        words[base] = key
        words[base + 1], words[base + 2] = level
        words[base + 3] = full_at
        words[held] = before + hold
