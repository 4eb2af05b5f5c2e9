"""What one replica tells of its cache, in the prefix index. Pure.

A replica may have several data-parallel ranks with a cache each. It is one target, so what any of
them holds counts as held.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence

from core.kv_events import CPU, Event
from routing.index import PrefixIndex, Target
from routing.residency import Residency

EXPIRE_S = 0.05
"""Prompts count as held for one to two such times after their first token, then only what was told.
Events of a prompt come with its first token, at times some 50 ms later; where they are later
still, the time is twice that."""
_LONGEST_EXPIRE_S = 1.0
_SMOOTHING = 0.1

_LARGEST = 1024
"""Blocks of an engine that has told nothing are believed not to have more tokens."""

Place = tuple[PrefixIndex, Target]


class _Rank:
    """The sink of one rank."""

    __slots__ = ("_cache", "held", "residency")

    def __init__(self, cache: ExactCache) -> None:
        self._cache = cache
        self.held: list[set[int]] = [set() for _ in cache.slowest]
        self.residency = Residency(cache.block_tokens, cache.start, self)

    def hold(self, block: int, tier: int) -> None:
        for level, slowest in enumerate(self._cache.slowest):
            held = self.held[level]
            if tier <= slowest:
                if block not in held:
                    held.add(block)
                    self._cache.held(level, block)
            elif block in held:
                held.discard(block)
                self._cache.gone(level, block)

    def unhold(self, block: int) -> None:
        for level, held in enumerate(self.held):
            if block in held:
                held.discard(block)
                self._cache.gone(level, block)

    def clear(self) -> None:
        for level, held in enumerate(self.held):
            self.held[level] = set()
            self._cache.cleared(level, held)


class ExactCache:
    """`place` tells where the replica's part of the index is, if it has one; `start` begins a
    chain of keys (adapter, salt). Only while it is `used` does the index go by it. `slowest`: for
    the target, and each of its slower ones, the slowest tier that counts there."""

    def __init__(
        self,
        block_tokens: int,
        start: Callable[[str | None, str], int],
        place: Callable[[], Place | None],
        slowest: Sequence[int] = (CPU,),
    ) -> None:
        self.slowest = tuple(slowest)
        self.block_tokens = block_tokens
        self.start = start
        self._find = place
        self._place: Place | None = None
        self._ranks: dict[int, _Rank] = {}
        self._used = False
        self._expired_at = float("-inf")
        self._lag_s = 0.0

    def __repr__(self) -> str:
        return f"<ExactCache of {len(self._ranks)} ranks, used={self._used}>"

    def left_out(self) -> dict[str, int]:
        """Blocks that the replica told of and nobody knows, by why, since the beginning."""
        found = [rank.residency for rank in self._ranks.values()]
        return {
            "orphan": sum(one.unknown for one in found),
            "image": sum(one.opaque for one in found),
            "bound": sum(one.refused for one in found),
        }

    def residency(self, rank: int) -> Residency:
        if rank not in self._ranks:
            self._ranks[rank] = _Rank(self)
        return self._ranks[rank].residency

    def apply(self, rank: int, events: Iterable[Event]) -> None:
        self.residency(rank).apply(events)

    def clear(self, rank: int) -> None:
        self.residency(rank).clear()

    def late(self, lag_s: float) -> None:
        """Events came so long after they were published."""
        self._lag_s += _SMOOTHING * (max(lag_s, 0.0) - self._lag_s)

    def use(self, used: bool) -> None:
        """Whether it can be trusted."""
        if used is not self._used:
            self._used = used
            self._put(self._find())

    def review(self, now: float) -> bool:
        """Follow the replica's part of the index to another one, and let what was prefilled count
        only as far as it was told. To be called several times a second, and after events. Whether
        something was prefilled that was not told of."""
        place = self._find()
        if place is None or self._place is None or not _same(place, self._place):
            self._put(place)
        expire_s = min(max(EXPIRE_S, 2 * self._lag_s), _LONGEST_EXPIRE_S)
        if place is None or not self._used or now - self._expired_at < expire_s:
            return False
        self._expired_at = now
        index, target = place
        due = [target.leaving[number] for number in range(target.due)]
        index.expire(target)
        return self._untold(due, target.held)

    def _untold(self, prompts: Iterable[Sequence[int]], held: Container[int]) -> bool:
        """Whether the last whole block of the engine's of any prompt is not held."""
        sizes = [rank.residency.largest for rank in self._ranks.values()]
        engine = max(sizes, default=0) or _LARGEST
        for blocks in prompts:
            whole = len(blocks) * self.block_tokens // engine * engine // self.block_tokens
            if whole and blocks[whole - 1] not in held:
                return True
        return False

    # --- told by ranks

    def held(self, level: int, block: int) -> None:
        if self._used and self._place is not None:
            index, target = self._place
            index.hold(_at(target, level), block)

    def gone(self, level: int, block: int) -> None:
        if self._used and self._place is not None and not self._elsewhere(level, block):
            index, target = self._place
            index.unhold(_at(target, level), block)

    def cleared(self, level: int, blocks: set[int]) -> None:
        if not self._used or self._place is None:
            return
        index, target = self._place
        if not any(rank.held[level] for rank in self._ranks.values()):
            index.clear(_at(target, level))
            return
        for block in blocks:
            self.gone(level, block)

    def _elsewhere(self, level: int, block: int) -> bool:
        ranks = self._ranks
        return len(ranks) > 1 and any(block in rank.held[level] for rank in ranks.values())

    def _put(self, place: Place | None) -> None:
        """Tell everything there."""
        self._place = place
        if place is None:
            return
        index, target = place
        index.use_exact(target, self._used)
        for one in target.slower:
            index.clear(one)
        if self._used:
            for rank in self._ranks.values():
                for level, blocks in enumerate(rank.held):
                    for block in blocks:
                        index.hold(_at(target, level), block)


def _at(target: Target, level: int) -> Target:
    return target.slower[level - 1] if level else target


def _same(one: Place, other: Place) -> bool:
    return one[0] is other[0] and one[1] is other[1]
