"""Which replica holds which prefix, judged by what was sent there. Pure.

One dictionary from a block's hash to a mask of targets (bits); residency of a chain is closed
towards its head, so a bisection on masks finds every target's match at once. Each target forgets
its least recently used blocks beyond its capacity, tails first. What was dispatched counts from
that moment (`expect`), lives until the first token and then stays (`confirm`), or is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

_SWEEP = 64
_MOST_AT_ONCE = 4096
_SLACK = 1024
_SHRINK = 0.95
_GROW = 1.05
_MOST_GROWTH = 4


class Target:
    """One replica's part of the index. `resident` is in order of use, the oldest first; beyond
    `most` of them the oldest go. `expected` counts what is on its way."""

    __slots__ = ("alive", "bit", "capacity", "expected", "most", "nominal", "resident")

    def __init__(self, bit: int, capacity: int) -> None:
        self.bit = bit
        self.capacity = capacity
        self.nominal = capacity
        self.most = capacity
        self.alive = True
        self.resident: dict[int, None] = {}
        self.expected: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<Target {self.bit:#x}: {len(self.resident)} of {self.capacity} blocks>"


class PrefixIndex:
    """`max_entries` bounds the resident blocks of all targets together."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._masks: dict[int, int] = {}
        self._targets: list[Target] = []
        self._free_bits: list[int] = []
        self._highest = 0
        self._dying: list[Target] = []
        self.evictions = 0

    def __repr__(self) -> str:
        return f"<PrefixIndex {len(self._masks)} blocks, {len(self._targets)} targets>"

    def __len__(self) -> int:
        """Distinct blocks."""
        return len(self._masks)

    def add(self, capacity: int) -> Target:
        """A new, cold target holding up to `capacity` blocks."""
        if self._free_bits:
            bit = self._free_bits.pop()
        else:
            bit = 1 << self._highest
            self._highest += 1
        target = Target(bit, max(capacity, 1))
        self._targets.append(target)
        self._bound_all()
        return target

    def has(self, target: Target) -> bool:
        return target.alive and target in self._targets

    def limit(self, max_entries: int) -> None:
        """Bound it anew; what is too much goes bit by bit as others come."""
        self._max_entries = max_entries
        self._bound_all()

    def remove(self, target: Target) -> None:
        """Forget a target wholly. Its bit matches nothing from now on; its blocks go bit by bit
        with later calls, as a large one at once would hold the event loop."""
        if target.alive:
            target.alive = False
            self._targets.remove(target)
            self._dying.append(target)
            self._bound_all()

    def clear(self) -> None:
        """Forget every target; `sweep` does the work."""
        for target in list(self._targets):
            self.remove(target)

    def sweep(self, budget: int) -> bool:
        """Wipe up to `budget` blocks of removed targets; whether none is left."""
        self._sweep(budget)
        return not self._dying

    def match(self, blocks: Sequence[int], targets: int) -> list[tuple[int, int]]:
        """How many of the leading `blocks` each target of the mask holds: pairs of a mask and a
        count; every target is in exactly one."""
        if not blocks:
            return [(targets, 0)]
        held_by = self._masks.get
        first = held_by(blocks[0], 0) & targets
        result: list[tuple[int, int]] = []
        if first != targets:
            result.append((targets & ~first, 0))
        pending = [(1, len(blocks), first)] if first else []
        while pending:
            low, high, group = pending.pop()  # they hold at least `low`, at most `high`
            if low == high:
                result.append((group, low))
                continue
            middle = (low + high) // 2
            holding = held_by(blocks[middle], 0) & group
            if holding:
                pending.append((middle + 1, high, holding))
            if holding != group:
                pending.append((low, middle, group & ~holding))
        return result

    def expect(self, target: Target, blocks: Sequence[int]) -> None:
        """The prompt of `blocks` is being sent to `target`. Must be followed by exactly one
        `confirm` or `drop`."""
        expected, masks, bit = target.expected, self._masks, target.bit
        for block in blocks:
            expected[block] = expected.get(block, 0) + 1
            masks[block] = masks.get(block, 0) | bit
        if self._dying:
            self._sweep(_SWEEP + len(blocks))

    def confirm(self, target: Target, blocks: Sequence[int]) -> None:
        """The first token came: `blocks` are resident, and the most recently used."""
        if not target.alive:
            return
        resident, expected = target.resident, target.expected
        for block in reversed(blocks):  # the head is the youngest, so that tails go first
            if block in resident:
                del resident[block]
            resident[block] = None  # its bit was set when it was expected
            count = expected[block] - 1
            if count:
                expected[block] = count
            else:
                del expected[block]
        if len(resident) > target.most:
            self._shrink(target)

    def drop(self, target: Target, blocks: Sequence[int]) -> None:
        """It failed before that."""
        if not target.alive:
            return
        expected, resident = target.expected, target.resident
        for block in blocks:
            count = expected[block] - 1
            if count:
                expected[block] = count
                continue
            del expected[block]
            if block not in resident:
                self._clear(block, target.bit)

    def corrected(self, target: Target, *, predicted: int, delivered: int) -> None:
        """The engine found `delivered` blocks where `predicted` were; mend the capacity.

        The blocks themselves stay: to answer, the engine has computed them anew.
        """
        if delivered < predicted:
            target.capacity = max(int(target.capacity * _SHRINK), 1)
            self._bound(target)
            self._shrink(target)
        elif delivered > predicted:
            grown = max(int(target.capacity * _GROW), target.capacity + 1)
            target.capacity = min(grown, target.nominal * _MOST_GROWTH)
            self._bound(target)

    def resize(self, target: Target, capacity: int) -> None:
        """A replica told its real capacity; what was learned is scaled with it."""
        capacity = max(capacity, 1)
        target.capacity = max(target.capacity * capacity // target.nominal, 1)
        target.nominal = capacity
        self._bound(target)
        self._shrink(target)

    def _limit(self, target: Target) -> int:
        # The share of each target bounds the whole without a second order of use.
        return min(target.capacity, max(self._max_entries // max(len(self._targets), 1), 1))

    def _bound(self, target: Target) -> None:
        # In batches: a dictionary that lost its oldest entries walks over their places each time.
        limit = self._limit(target)
        target.most = limit + min(_SLACK, limit // 16)

    def _bound_all(self) -> None:
        for target in self._targets:
            self._bound(target)

    def _shrink(self, target: Target) -> None:
        resident = target.resident
        if len(resident) <= target.most:
            return
        excess = len(resident) - self._limit(target)
        oldest = iter(resident)
        doomed = [next(oldest) for _ in range(min(excess, _MOST_AT_ONCE))]
        for block in doomed:
            del resident[block]
            if block not in target.expected:
                self._clear(block, target.bit)
        self.evictions += len(doomed)

    def _clear(self, block: int, bit: int) -> None:
        mask = self._masks.get(block, 0) & ~bit
        if mask:
            self._masks[block] = mask
        else:
            self._masks.pop(block, None)

    def _sweep(self, budget: int) -> None:
        """Wipe up to `budget` blocks of removed targets, then free their bits."""
        while self._dying and budget > 0:
            target = self._dying[-1]
            store = target.resident or target.expected
            while store and budget > 0:
                block, _ = store.popitem()
                self._clear(block, target.bit)
                budget -= 1
            if not target.resident and not target.expected:
                self._dying.pop()
                self._free_bits.append(target.bit)
