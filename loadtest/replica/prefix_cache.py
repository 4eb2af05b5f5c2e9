"""The LRU prefix cache of the fake replica: blocks of real token ids, hashed along their chain."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol


class Listener(Protocol):
    """Who is told what the cache holds, as engines tell by KV events."""

    def stored(
        self, parent: int | None, keys: list[int], ids: Sequence[int], salt: str
    ) -> None: ...

    def removed(self, keys: list[int]) -> None: ...

    def cleared(self) -> None: ...


class PrefixCache:
    """At most `num_blocks` full blocks of `block_size` tokens, least recently used out first.

    As in vLLM a hit never covers the last prompt token (it has to be computed to answer), and of
    one sequence the tail goes before the head.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.listener: Listener | None = None
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __repr__(self) -> str:
        return f"<PrefixCache {len(self._blocks)}/{self.num_blocks} blocks of {self.block_size}>"

    def __len__(self) -> int:
        return len(self._blocks)

    def keys(self, ids: Sequence[int], salt: str) -> list[int]:
        """One key for each full block; a key stands for everything before it too."""
        size, parent, keys = self.block_size, hash(salt), []
        for start in range(0, len(ids) - size + 1, size):
            parent = hash((parent, tuple(ids[start : start + size])))
            keys.append(parent)
        return keys

    def match(self, ids: Sequence[int], salt: str = "") -> int:
        """How many tokens of the prompt `ids` are cached; touches nothing."""
        hits = 0
        for key in self.keys(ids, salt)[: (len(ids) - 1) // self.block_size]:
            if key not in self._blocks:
                break
            hits += 1
        return hits * self.block_size

    def insert(self, ids: Sequence[int], salt: str = "") -> None:
        """Keep all full blocks of `ids`, the head as the most recently used."""
        keys = self.keys(ids, salt)
        if self.listener is not None:
            self._tell_stored(self.listener, keys, ids, salt)
        for key in reversed(keys):
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        gone = []
        while len(self._blocks) > self.num_blocks:
            gone.append(self._blocks.popitem(last=False)[0])
        if gone and self.listener is not None:
            self.listener.removed(gone)

    def clear(self) -> None:
        self._blocks.clear()
        if self.listener is not None:
            self.listener.cleared()

    def _tell_stored(
        self, listener: Listener, keys: list[int], ids: Sequence[int], salt: str
    ) -> None:
        """Each run of blocks that are new; a run after others has a parent and no salt."""
        size, first = self.block_size, 0
        while first < len(keys):
            last = first
            while last < len(keys) and keys[last] not in self._blocks:
                last += 1
            if last > first:
                parent = keys[first - 1] if first else None
                tokens = ids[first * size : last * size]
                listener.stored(parent, keys[first:last], tokens, "" if first else salt)
            first = last + 1
