"""The LRU prefix cache of the fake replica: blocks of real token ids, hashed along their chain."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """At most `num_blocks` full blocks of `block_size` tokens, least recently used out first.

    As in vLLM a hit never covers the last prompt token (it has to be computed to answer), and of
    one sequence the tail goes before the head.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
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
        for key in reversed(self.keys(ids, salt)):
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        while len(self._blocks) > self.num_blocks:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        self._blocks.clear()
