"""What the fake replica tells of its cache, in each encoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from loadtest.replica.kv_log import KvLog
from loadtest.replica.prefix_cache import PrefixCache


def taken(log: KvLog, now: float = 7.0) -> tuple[int, list[Any]]:
    batch = log.take(now)
    assert batch is not None
    ts, events, rank = msgspec.msgpack.decode(batch[1])
    assert (ts, rank) == (now, 0)
    return batch[0], events


def test_maps() -> None:
    log = KvLog("maps", 2, 10)
    log.stored(None, [-1, 5], [10, 11, 12, 13], "salt")
    log.stored(5, [6], [14, 15], "")
    log.removed([6])
    log.cleared()
    number, (first, second, removed, cleared) = taken(log)
    assert number == 0
    assert first["block_hashes"] == [2**64 - 1, 5]
    assert (first["parent_block_hash"], first["extra_keys"]) == (None, [["salt"], None])
    assert (second["parent_block_hash"], second["token_ids"]) == (5, [14, 15])
    assert removed == {"type": "BlockRemoved", "block_hashes": [6], "medium": "GPU", "group_idx": 0}
    assert cleared == {"type": "AllBlocksCleared"}
    assert log.take(8.0) is None


def test_arrays_have_the_order_of_vllm() -> None:
    log = KvLog("arrays", 2, 10)
    log.stored(None, [5], [10, 11], "salt")
    log.removed([5])
    _, (stored, removed) = taken(log)
    assert stored[:7] == ["BlockStored", [5], None, [10, 11], 2, None, "GPU"]
    assert stored[7:] == [None, [["salt"]], 0, "full_attention"]
    assert removed == ["BlockRemoved", [5], "GPU", 0]


def test_sglang_signs_hashes_and_names_the_salt() -> None:
    log = KvLog("sglang", 2, 10)
    log.stored(-4, [-5], [10, 11], "salt")
    _, (stored,) = taken(log)
    assert (stored["block_hashes"], stored["parent_block_hash"]) == ([-5], -4)
    assert stored["cache_salt"] == "salt"
    assert "extra_keys" not in stored


def test_twice() -> None:
    log = KvLog("maps", 2, 10)
    log.twice = True
    log.removed([5])
    log.cleared()
    assert [event["type"] for event in taken(log)[1]] == [
        *("BlockRemoved", "BlockRemoved", "AllBlocksCleared"),
    ]


def test_the_last_batches_are_remembered_unless_lost() -> None:
    log = KvLog("maps", 2, 2)
    for number in range(4):
        log.cleared()
        log.take(float(number), remember=number != 3)
    assert [number for number, _ in log.since(0)] == [1, 2]
    assert [number for number, _ in log.since(2)] == [2]
    log.restart()
    log.cleared()
    assert taken(log)[0] == 0


class Heard:
    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def stored(self, parent: int | None, keys: list[int], ids: Sequence[int], salt: str) -> None:
        self.told.append(("stored", parent, keys, list(ids), salt))

    def removed(self, keys: list[int]) -> None:
        self.told.append(("removed", keys))

    def cleared(self) -> None:
        self.told.append(("cleared",))


def test_the_cache_tells_what_is_new_and_what_goes() -> None:
    cache, heard = PrefixCache(3, 2), Heard()
    cache.listener = heard
    one, two, three, four = cache.keys([1, 2, 3, 4, 5, 6, 7, 8], "s")
    cache.insert([1, 2, 3, 4, 5], "s")
    cache.insert([1, 2, 3, 4, 5, 6, 7], "s")
    cache.insert([1, 2, 3, 4, 5, 6], "s")
    cache.insert([1, 2, 3, 4, 5, 6, 7, 8], "s")
    cache.clear()
    assert heard.told == [
        ("stored", None, [one, two], [1, 2, 3, 4], "s"),
        ("stored", two, [three], [5, 6], ""),
        ("stored", three, [four], [7, 8], ""),
        ("removed", [four]),
        ("cleared",),
    ]
