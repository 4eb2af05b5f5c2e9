"""KV events as vLLM published them: decoded, followed, and mapped to canonical blocks."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from beside import beside

from backend.kv.events import decode_batch
from backend.kv.stream import EventStream
from core.kv_events import Cleared, Stored, Trust
from routing.blocks import chain, seed
from routing.residency import Residency

FIXTURES = "vllm/fixtures/"
SECRET = b"o" * 32


def start(adapter: str | None, salt: str) -> int:
    return seed(SECRET, adapter or "m", salt)


class Held:
    def __init__(self) -> None:
        self.blocks: dict[int, int] = {}

    def hold(self, block: int, tier: int) -> None:
        self.blocks[block] = tier

    def unhold(self, block: int) -> None:
        del self.blocks[block]

    def clear(self) -> None:
        self.blocks.clear()


def captured(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in beside(FIXTURES + name).read_text().splitlines()]


class Follower:
    """What the engine holds by the names and copies alone, and the text up to each block's end."""

    def __init__(self) -> None:
        self.copies: Counter[object] = Counter()
        self.text: dict[object, tuple[str, list[int]]] = {}
        self.size = 0

    def apply(self, event: dict[str, Any]) -> None:
        if event["type"] == "AllBlocksCleared":
            self.copies.clear()
        elif event["type"] == "BlockRemoved":
            for name in event["block_hashes"]:
                assert self.copies[name] > 0
                self.copies[name] -= 1
        else:
            self._stored(event)

    def _stored(self, event: dict[str, Any]) -> None:
        self.size = size = event["block_size"]
        extra = event["extra_keys"][0]
        salt, text = (extra[0] if extra else ""), list[int]()
        if event["parent_block_hash"] is not None:
            salt, text = self.text[event["parent_block_hash"]]
        for number, name in enumerate(event["block_hashes"]):
            text = [*text, *event["token_ids"][number * size : (number + 1) * size]]
            self.text[name] = (salt, text)
            self.copies[name] += 1

    def keys(self, block_tokens: int) -> set[int]:
        """Keys of which all blocks from the start are there."""
        there = {name for name, copies in self.copies.items() if copies}
        whole = {(salt, tuple(text)) for salt, text in (self.text[name] for name in there)}
        found: set[int] = set()
        for salt, text in whole:
            ends = range(self.size, len(text) + 1, self.size)
            if all((salt, text[:end]) in whole for end in ends):
                found.update(keys(text, salt, block_tokens))
        return found


def keys(tokens: Sequence[int], salt: str, block_tokens: int) -> list[int]:
    return chain(array("I", tokens).tobytes(), block_tokens, start(None, salt))


@pytest.mark.parametrize("name", ["kv_events_A.jsonl", "kv_connectmode.jsonl"])
@pytest.mark.parametrize("block_tokens", [32, 64, 128])
def test_what_is_held_is_what_the_names_say(name: str, block_tokens: int) -> None:
    follower, stream, held = Follower(), EventStream(replayable=True), Held()
    residency = Residency(block_tokens, start, held)
    stream.connected()
    stream.replay_ended()
    most = 0
    for row in captured(name):
        batch = decode_batch(bytes.fromhex(row["payload_hex"]))
        assert (batch.unknown, batch.malformed, batch.rank) == (0, 0, 0)
        step = stream.live(row["seq"], batch)
        assert (step.clear, len(step.batches)) == (False, 1)
        for event, published in zip(batch.events, row["decoded"][1], strict=True):
            residency.apply([event])
            follower.apply(published)
            assert set(held.blocks) == follower.keys(block_tokens)
            most = max(most, len(held.blocks))
    assert stream.trust is Trust.EXACT
    assert most > 0
    assert (residency.unknown, residency.opaque, residency.refused) == (0, 0, 0)


def test_a_salt_is_told() -> None:
    salts = Counter(
        event.salt
        for row in captured("kv_events_A.jsonl")
        for event in decode_batch(bytes.fromhex(row["payload_hex"])).events
        if isinstance(event, Stored)
    )
    assert salts["tenant-a"] == 1
    assert set(salts) == {"", "tenant-a"}


def test_the_arrays_of_older_versions() -> None:
    row = json.loads(beside(FIXTURES + "kv_event_legacy_array_0.23.0.json").read_text())
    batch = decode_batch(bytes.fromhex(row["payload_hex"]))
    ts, published, rank = row["decoded"]
    assert (batch.ts, batch.rank, batch.unknown, batch.malformed) == (ts, rank, 0, 0)
    stored, removed, cleared = batch.events
    assert isinstance(stored, Stored)
    assert (stored.hashes, stored.token_ids) == (published[0][1], published[0][3])
    assert (stored.salt, stored.plain, stored.block_tokens) == ("tenant-a", 2, 16)
    assert removed == (published[1][1], 0, 0)
    assert cleared == Cleared()
