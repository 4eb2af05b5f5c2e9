"""Which replica holds which prefix, judged by what was sent there. Pure.

One mapping from a block's hash to a mask of targets (bits); residency of a chain is closed
towards its head, so a bisection on masks finds every target's match at once. Each target forgets
its least recently used blocks beyond its capacity, tails first. What was dispatched counts from
that moment (`expect`), lives until the first token and then stays (`confirm`), or is dropped.

Of a target that tells by events what it holds (`use_exact`), that alone counts (`hold`, `unhold`,
`clear`), and beside it what is on its way. The masks are in a dictionary, or in memory that other
processes read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from routing.index_target import Masks, Target

__all__ = ["Masks", "PrefixIndex", "Target"]

_SWEEP = 64
_MOST_AT_ONCE = 4096
_SLACK = 1024
_SHRINK = 0.95
_GROW = 1.05
_MOST_GROWTH = 4
_EVERYTHING = 1 << 62


class PrefixIndex:
    """`max_entries` bounds the resident blocks of all targets together. `slower`: how many further
    tiers each target has."""

    def __init__(self, max_entries: int, masks: Masks | None = None, slower: int = 0) -> None:
        self.slower = slower
        self._max_entries = max_entries
        self._masks: Masks = {} if masks is None else masks
        self._held_by = self._masks.get
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

    def add(self, capacity: int, name: str = "") -> Target:
        """A new, cold target holding up to `capacity` blocks. `name`: its replica's id, for an
        index that shares what it knows with other processes."""
        target = Target(self._free_bit(), max(capacity, 1))
        target.slower = tuple(Target(self._free_bit(), 1) for _ in range(self.slower))
        return self._join(target)

    def add_at(self, bit: int, capacity: int, slower: Sequence[int] = ()) -> Target:
        """As `add`, with bits of the caller's choice that no other target has. All targets of an
        index are made by `add`, or all by this."""
        for dying in self._dying:
            if dying.bit == bit or dying.bit in slower:
                self._wipe(dying, _EVERYTHING)
        self._dying = [one for one in self._dying if one.bit != bit and one.bit not in slower]
        target = Target(bit, max(capacity, 1), fixed=True)
        target.slower = tuple(Target(each, 1, fixed=True) for each in slower)
        return self._join(target)

    def _join(self, target: Target) -> Target:
        self._targets.append(target)
        self._bound_all()
        return target

    def _free_bit(self) -> int:
        if self._free_bits:
            return self._free_bits.pop()
        self._highest += 1
        return 1 << self._highest - 1

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
            self._targets.remove(target)
            for one in (target, *target.slower):
                one.alive = False
                self._dying.append(one)
            self._bound_all()

    def clear_all(self) -> None:
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
        held_by = self._held_by
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
        if not blocks and not self._dying:
            return
        expected, masks, bit = target.expected, self._masks, target.bit
        known = target.held if target.exact else target.resident
        once = dict.fromkeys(blocks, 1)
        if len(once) == len(blocks) and expected.keys().isdisjoint(once):
            expected.update(once)  # nearly always, and at half the cost
            fresh = blocks[_head(blocks, known) :]
            if isinstance(masks, dict) and masks.keys().isdisjoint(fresh):
                masks.update(dict.fromkeys(fresh, bit))
            else:
                for block in fresh:
                    masks[block] = masks.get(block, 0) | bit
        else:
            for block in blocks:
                count = expected.get(block, 0)
                expected[block] = count + 1
                if not count and block not in known:
                    masks[block] = masks.get(block, 0) | bit
        if self._dying:
            self._sweep(_SWEEP + len(blocks))

    def confirm(self, target: Target, blocks: Sequence[int]) -> None:
        """The first token came: `blocks` are resident, and the most recently used. Of an exact
        target: they count for nothing soon, as its events tell."""
        if not target.alive:
            return
        if target.exact:
            target.leaving.append(blocks)
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
        expected = target.expected
        known = target.held if target.exact else target.resident
        for block in blocks:
            count = expected[block] - 1
            if count:
                expected[block] = count
                continue
            del expected[block]
            if block not in known:
                self._clear(block, target.bit)

    # --- a target that tells what it holds

    def use_exact(self, target: Target, exact: bool) -> None:
        """From now on `target` tells by `hold` and `unhold` what is there, and is believed to hold
        nothing before it has; or, not `exact`, it does so no more: what it held is judged as if
        it had been sent there."""
        if target.exact == exact or not target.alive:
            return
        if exact:
            self.clear(target)
            target.exact = True
            return
        target.exact = False
        for block in target.held:
            target.resident[block] = None
        target.held = set()
        leaving, target.leaving, target.due = target.leaving, deque(), 0
        for blocks in leaving:
            self.confirm(target, blocks)
        self._shrink(target)

    def hold(self, target: Target, block: int) -> None:
        """The exact `target` holds `block` from now on. Idempotent."""
        if target.alive and block not in target.held:
            target.held.add(block)
            if block not in target.expected:
                self._masks[block] = self._masks.get(block, 0) | target.bit

    def unhold(self, target: Target, block: int) -> None:
        """It holds `block` no more; a prompt on its way with it still counts. Idempotent."""
        if target.alive and block in target.held:
            target.held.discard(block)
            if block not in target.expected:
                self._clear(block, target.bit)

    def clear(self, target: Target) -> None:
        """Nothing is there any more, or nothing is known to be; what is on its way still counts.
        A large target is wiped bit by bit, under the bit that it had, unless that is fixed."""
        if not target.alive:
            return
        ghost = Target(target.bit, 1, fixed=target.fixed)
        ghost.resident, target.resident = target.resident, {}
        ghost.held, target.held = target.held, set()
        ghost.expected = dict(target.expected)
        if target.fixed:
            self._wipe(ghost, _EVERYTHING)
        else:
            self._dying.append(ghost)
            target.bit = self._free_bit()
        for block in target.expected:
            self._masks[block] = self._masks.get(block, 0) | target.bit

    def expire(self, target: Target) -> None:
        """Of prompts whose first token had come by the last call, count only what is held. To be
        called over and over, further apart than the events of an exact target are late."""
        for _ in range(target.due):
            self.drop(target, target.leaving.popleft())
        target.due = len(target.leaving)

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
            self._masks.pop(block, 0)

    def _sweep(self, budget: int) -> None:
        """Wipe up to `budget` blocks of removed targets, then free their bits."""
        while self._dying and budget > 0:
            target = self._dying[-1]
            budget = self._wipe(target, budget)
            if not target.resident and not target.expected and not target.held:
                self._dying.pop()
                if not target.fixed:
                    self._free_bits.append(target.bit)

    def _wipe(self, target: Target, budget: int) -> int:
        """Take the bit off up to `budget` of its blocks; what is left of that."""
        for store in (target.resident, target.expected):
            while store and budget > 0:
                block, _ = store.popitem()
                self._clear(block, target.bit)
                budget -= 1
        while target.held and budget > 0:
            self._clear(target.held.pop(), target.bit)
            budget -= 1
        return budget


def _head(blocks: Sequence[int], known: Collection[int]) -> int:
    """How many of the leading blocks are known: what is known of a chain is its head."""
    low, high = 0, len(blocks)
    while low < high:
        middle = (low + high) // 2
        if blocks[middle] in known:
            low = middle + 1
        else:
            high = middle
    return low
