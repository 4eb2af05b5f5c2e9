"""The KV events of the fake replica: collected, encoded as vLLM and SGLang do, remembered. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

ENCODINGS = ("off", "maps", "arrays", "sglang")
"""Maps: vLLM from 0.24; arrays: before; sglang: maps with signed hashes and a field for salts."""
_UNSIGNED = (1 << 64) - 1


class KvLog:
    """Events until `take` makes a batch of them; `since` tells the batches of the last `keep`."""

    def __init__(self, encoding: str, block_size: int, keep: int, rank: int = 0) -> None:
        self._rank = rank
        self.encoding = encoding
        self.block_size = block_size
        self.twice = False
        """Announce every block twice, and each of the copies gone, as vLLM does when several
        requests compute the same last block."""
        self._events: list[Any] = []
        self._batches: deque[tuple[int, bytes]] = deque(maxlen=keep)
        self._next = 0

    def __repr__(self) -> str:
        return f"<KvLog {self.encoding}, next {self._next}>"

    def stored(
        self, parent: int | None, keys: Sequence[int], ids: Sequence[int], salt: str
    ) -> None:
        """Full blocks were cached, the first after `parent`; `salt` if it is the first of all."""
        hashes = [self._hash(key) for key in keys]
        above = None if parent is None else self._hash(parent)
        event: Any = {
            "type": "BlockStored",
            "block_hashes": hashes,
            "parent_block_hash": above,
            "token_ids": list(ids),
            "block_size": self.block_size,
            "lora_id": None,
            "medium": "GPU",
        }
        if self.encoding == "sglang":
            event.update({"cache_salt": salt} if salt else {})
        else:
            extra = [[salt] if salt and not i else None for i in range(len(keys))]
            event.update(
                lora_name=None, extra_keys=extra, group_idx=0, kv_cache_spec_kind="full_attention"
            )
        self._add(event)

    def removed(self, keys: Sequence[int]) -> None:
        event: Any = {
            "type": "BlockRemoved",
            "block_hashes": [self._hash(key) for key in keys],
            "medium": "GPU",
        }
        if self.encoding != "sglang":
            event["group_idx"] = 0
        self._add(event)

    def cleared(self) -> None:
        self._add({"type": "AllBlocksCleared"})

    def take(self, now: float, remember: bool = True) -> tuple[int, bytes] | None:
        """Number and bytes of a batch of what was collected; `now`: Unix seconds."""
        if not self._events:
            return None
        events, self._events = self._events, []
        if self.encoding == "arrays":
            events = [list(event.values()) for event in events]
        batch = self._next, msgspec.msgpack.encode([now, events, self._rank])
        self._next += 1
        if remember:
            self._batches.append(batch)
        return batch

    def since(self, number: int) -> Iterator[tuple[int, bytes]]:
        return (batch for batch in self._batches if batch[0] >= number)

    def restart(self) -> None:
        """As a new process: nothing is remembered, and numbers begin anew."""
        self._events.clear()
        self._batches.clear()
        self._next = 0

    def _add(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        if self.twice and event["type"] != "AllBlocksCleared":
            self._events.append(event)

    def _hash(self, key: int) -> int:
        return key if self.encoding == "sglang" else key & _UNSIGNED
