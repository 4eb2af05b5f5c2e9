"""Which replica holds which prefix, judged by what was sent there. Pure.

One dictionary from a block's hash to a mask of targets (bits); residency of a chain is closed
towards its head, so a bisection on masks finds every target's match at once. Each target forgets
its least recently used blocks beyond its capacity, tails first. What was dispatched counts from
that moment (`expect`), lives until the first token and is then kept, or is dropped.
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
    """One replica's part of the index. `resident` is in order of use, the oldest first."""

    __slots__ = ("alive", "bit", "capacity", "expected", "nominal", "resident")

    def __init__(self, bit: int, capacity: int) -> None:
        self.bit = bit
        self.capacity = capacity
        self.nominal = capacity
        self.alive = True
        self.resident: dict[int, None] = {}
        self.expected: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<Target {self.bit:#x}: {len(self.resident)} of {self.capacity} blocks>"


class Expectation:
    """A prompt on its way to a target: confirmed or dropped exactly once."""

    __slots__ = ("_blocks", "_index", "_open", "_target")

    def __init__(self, index: PrefixIndex, target: Target, blocks: Sequence[int]) -> None:
        self._index = index
        self._target = target
        self._blocks = blocks
        self._open = True

    def __repr__(self) -> str:
        return f"<Expectation of {len(self._blocks)} blocks open={self._open}>"

    def confirm(self) -> None:
        """The first token came: the blocks are resident now. Idempotent."""
        if self._open:
            self._open = False
            self._index.keep(self._target, self._blocks)
            self._index.unexpect(self._target, self._blocks)

    def drop(self) -> None:
        """It failed before that. Idempotent."""
        if self._open:
            self._open = False
            self._index.unexpect(self._target, self._blocks)


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
        return target

    def remove(self, target: Target) -> None:
        """Forget a target wholly. Its bit matches nothing from now on; its blocks go bit by bit
        with later calls, as a large one at once would hold the event loop."""
        if target.alive:
            target.alive = False
            self._targets.remove(target)
            self._dying.append(target)

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

    def expect(self, target: Target, blocks: Sequence[int]) -> Expectation:
        """The prompt of `blocks` is being sent to `target`."""
        expected, masks, bit = target.expected, self._masks, target.bit
        for block in blocks:
            expected[block] = expected.get(block, 0) + 1
            masks[block] = masks.get(block, 0) | bit
        if self._dying:
            self._sweep(_SWEEP + len(blocks))
        return Expectation(self, target, blocks)

    def unexpect(self, target: Target, blocks: Sequence[int]) -> None:
        """Called by an Expectation that ends."""
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

    def keep(self, target: Target, blocks: Sequence[int]) -> None:
        """`target` has computed `blocks`: resident, and the most recently used."""
        if not target.alive:
            return
        resident, masks, bit = target.resident, self._masks, target.bit
        for block in reversed(blocks):  # the head is the youngest, so that tails go first
            if block in resident:
                del resident[block]
            else:
                masks[block] = masks.get(block, 0) | bit
            resident[block] = None
        self._shrink(target)

    def corrected(self, target: Target, *, predicted: int, delivered: int) -> None:
        """The engine found `delivered` blocks where `predicted` were; mend the capacity.

        The blocks themselves stay: to answer, the engine has computed them anew.
        """
        if delivered < predicted:
            target.capacity = max(int(target.capacity * _SHRINK), 1)
            self._shrink(target)
        elif delivered > predicted:
            grown = max(int(target.capacity * _GROW), target.capacity + 1)
            target.capacity = min(grown, target.nominal * _MOST_GROWTH)

    def resize(self, target: Target, capacity: int) -> None:
        """A replica told its real capacity; what was learned is scaled with it."""
        capacity = max(capacity, 1)
        target.capacity = max(target.capacity * capacity // target.nominal, 1)
        target.nominal = capacity
        self._shrink(target)

    def _shrink(self, target: Target) -> None:
        # The share of each target bounds the whole without a second order of use.
        limit = min(target.capacity, max(self._max_entries // max(len(self._targets), 1), 1))
        resident = target.resident
        excess = len(resident) - limit
        # In batches: a dictionary that lost its oldest entries walks over their places each time.
        if excess <= min(_SLACK, limit // 16):
            return
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
