"""Decoding batches of KV events, in both encodings."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.kv.events import decode_batch
from core.kv_events import CPU, DISK, GPU, Cleared, Removed, Stored


def packed(*events: Any, ts: object = 5.5, rank: object = 0) -> bytes:
    return msgspec.msgpack.encode([ts, list(events), rank])


def stored(**fields: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": [1, 2],
        "parent_block_hash": None,
        "token_ids": [10, 11, 12, 13],
        "block_size": 2,
        **fields,
    }


def one(event: object) -> Stored:
    batch = decode_batch(packed(event))
    assert (batch.unknown, batch.malformed) == (0, 0)
    (found,) = batch.events
    assert isinstance(found, Stored)
    return found


def test_maps() -> None:
    batch = decode_batch(
        packed(
            stored(medium="GPU", group_idx=0, kv_cache_spec_kind="full_attention", locality="x"),
            {"type": "BlockRemoved", "block_hashes": [b"ab"], "medium": "CPU", "group_idx": 3},
            {"type": "AllBlocksCleared"},
            rank=2,
        )
    )
    assert batch == (
        5.5,
        [
            Stored([1, 2], None, [10, 11, 12, 13], 2, plain=2),
            Removed([b"ab"], CPU, 3),
            Cleared(),
        ],
        2,
        0,
        0,
    )


def test_arrays_of_any_length() -> None:
    long = ["BlockStored", [7], 6, [1, 2], 2, None, "GPU", "ada", [["ada", "salt"]], 1, "mamba", 0]
    short = ["BlockStored", [7], b"p", [1, 2], 2, None]
    batch = decode_batch(packed(long, short, ["BlockRemoved", [7]], ["AllBlocksCleared"]))
    assert batch.events == [
        Stored([7], 6, [1, 2], 2, GPU, 1, False, "ada", "salt", 1),
        Stored([7], b"p", [1, 2], 2, plain=1),
        Removed([7]),
        Cleared(),
    ]


@pytest.mark.parametrize(
    ("medium", "tier"),
    [(None, GPU), ("GPU", GPU), ("CPU", CPU), ("CPU_PINNED", CPU), ("STORAGE", DISK), ("X", DISK)],
)
def test_media(medium: str | None, tier: int) -> None:
    assert one(stored(medium=medium)).tier == tier


@pytest.mark.parametrize(
    ("extra", "adapter", "salt", "plain"),
    [
        (None, None, "", 2),
        ([None, None], None, "", 2),
        ([["s"], None], None, "s", 2),
        ([["ada"], ["ada"]], "ada", "", 2),
        ([["ada", "s"], ["ada"]], "ada", "s", 2),
        ([None, [["img", 3]]], None, "", 1),
        ([[["img", 3]], None], None, "", 0),
        ([["s", b"digest"], None], None, "", 0),
        ([["s"], ["later"]], None, "s", 1),
    ],
)
def test_what_was_hashed_beside_the_tokens(
    extra: object, adapter: str | None, salt: str, plain: int
) -> None:
    event = one(stored(extra_keys=extra, lora_name=adapter))
    assert (event.adapter, event.salt, event.plain) == (adapter, salt, plain)


def test_sglang_names_the_salt_and_old_engines_number_adapters() -> None:
    event = one(stored(cache_salt="s", lora_id=4, block_hashes=[-3, -(2**63)]))
    assert (event.salt, event.adapter, event.hashes) == ("s", "lora:4", [-3, -(2**63)])


def test_kinds_of_attention() -> None:
    assert one(stored(kv_cache_spec_kind="mla_attention")).reusable
    assert not one(stored(kv_cache_spec_kind="sliding_window", token_ids=[1])).reusable


def test_unknown_types_are_counted() -> None:
    batch = decode_batch(packed({"type": "Moved"}, ["Moved", 1], 7, None, [], {}, stored()))
    assert (len(batch.events), batch.unknown) == (1, 6)


@pytest.mark.parametrize(
    "event",
    [
        stored(block_hashes="ab"),
        stored(block_hashes=[1.5, 2]),
        stored(token_ids=[1, 2, 3]),
        stored(token_ids=None),
        stored(block_size=0),
        stored(parent_block_hash="p"),
        ["BlockStored"],
    ],
)
def test_blocks_that_cannot_be_read_are_left_out(event: object) -> None:
    batch = decode_batch(packed(event))
    assert (batch.events, batch.malformed) == ([], 1)


def test_a_removal_that_cannot_be_read_clears() -> None:
    batch = decode_batch(packed({"type": "BlockRemoved", "block_hashes": [None]}))
    assert (batch.events, batch.malformed) == ([Cleared()], 1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x01",
        msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode([1.0, 3]),
        msgspec.msgpack.encode(["now", []]),
        msgspec.msgpack.encode([float("nan"), []]),
        b"\x91" * 100_000 + b"\x01",
        msgspec.msgpack.encode({"ts": 1.0, "events": []}),
    ],
)
def test_no_batch(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"batch|msgpack"):
        decode_batch(data)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text(max_size=3)
    | st.binary(max_size=3)
    | st.floats(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
FIELDS = (
    *("block_hashes", "parent_block_hash", "token_ids", "block_size", "extra_keys", "medium"),
    *("group_idx", "lora_name", "lora_id", "cache_salt", "kv_cache_spec_kind"),
)


@given(ANYTHING)
def test_no_value_of_a_field_is_too_odd(value: object) -> None:
    """It is read, left out or taken for a clear, and what is read can be applied."""
    for kind, field in itertools.product(("BlockStored", "BlockRemoved"), FIELDS):
        event = stored(**{"type": kind, field: value})
        batch = decode_batch(packed(event))
        assert len(batch.events) + batch.malformed + batch.unknown >= 1, (kind, field)
        for found in batch.events:
            assert isinstance(found, Stored | Removed | Cleared), (kind, field)


def test_a_batch_may_be_short_or_longer_than_known() -> None:
    assert decode_batch(msgspec.msgpack.encode([1, []])).rank is None
    assert decode_batch(msgspec.msgpack.encode([1, [], 3, "more"])).rank == 3
