"""Reads batches of KV events. Pure.

A batch is msgpack: `[timestamp, [event, ...], rank]`. An event is a map with a `type` (vLLM from
0.24, SGLang) or an array that begins with it (before): vLLM `distributed/kv_events.py`, SGLang
`srt/disaggregation/kv_events.py`. What is not known is ignored, so that engines may add to it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import msgspec

from core.kv_events import CPU, DISK, GPU, BlockHash, Cleared, Event, Removed, Stored

_STORED = (
    "type",
    *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
    *("lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind"),
)
_REMOVED = ("type", "block_hashes", "medium", "group_idx")
_FIELDS = {"BlockStored": _STORED, "BlockRemoved": _REMOVED, "AllBlocksCleared": ("type",)}
# A block of another kind (sliding window, Mamba) serves only who needs its very tokens next.
_REUSABLE = {None, "full_attention", "mla_attention", "sink_full_attention"}

_decode = msgspec.msgpack.Decoder().decode


class Batch(NamedTuple):
    """`ts`: the engine's wall clock, Unix seconds. `unknown` events have a type that is not known,
    `malformed` ones a form."""

    ts: float
    events: list[Event]
    rank: int | None = None
    unknown: int = 0
    malformed: int = 0


def decode_batch(data: bytes | memoryview) -> Batch:
    """Raises ValueError when it is no batch at all."""
    try:
        document = _decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"not msgpack: {error}") from error
    if not isinstance(document, list) or len(document) < 2 or not isinstance(document[1], list):
        raise ValueError("not a batch of events")
    ts, raw = document[0], document[1]
    if not isinstance(ts, int | float) or not math.isfinite(ts):
        raise ValueError("a batch without a time")
    rank = document[2] if len(document) > 2 and type(document[2]) is int else None
    events: list[Event] = []
    unknown = malformed = 0
    for item in raw:
        fields = _fields(item)
        if fields is None:
            unknown += 1
            continue
        try:
            events.append(_event(fields))
        except ValueError:
            malformed += 1
            if fields["type"] != "BlockStored":
                events.append(Cleared())  # what was removed is not known: believe in nothing
    return Batch(float(ts), events, rank, unknown, malformed)


def _fields(item: object) -> dict[str, Any] | None:
    """The fields by name; None when the type is not known."""
    if isinstance(item, dict):
        kind = item.get("type")
        return item if isinstance(kind, str) and kind in _FIELDS else None
    if isinstance(item, list) and item and isinstance(item[0], str) and item[0] in _FIELDS:
        return dict(zip(_FIELDS[item[0]], item, strict=False))
    return None


def _event(fields: dict[str, Any]) -> Event:
    """Raises ValueError."""
    kind = fields["type"]
    if kind == "AllBlocksCleared":
        return Cleared()
    hashes = _hashes(fields.get("block_hashes"))
    tier = _tier(fields.get("medium"))
    group = fields.get("group_idx")
    group = group if type(group) is int else 0
    if kind == "BlockRemoved":
        return Removed(hashes, tier, group)
    tokens, size = fields.get("token_ids"), fields.get("block_size")
    if not isinstance(tokens, list) or type(size) is not int or size < 1:
        raise ValueError("blocks without tokens or size")
    parent = fields.get("parent_block_hash")
    if parent is not None:
        parent = _hashes([parent])[0]
    reusable = _text(fields.get("kv_cache_spec_kind")) in _REUSABLE
    if reusable and len(tokens) != len(hashes) * size:
        raise ValueError("tokens that do not fill the blocks")
    adapter = _text(fields.get("lora_name"))
    if adapter is None and (number := fields.get("lora_id")) is not None:
        adapter = f"lora:{number}"
    salt, plain = _extra(fields.get("extra_keys"), adapter, len(hashes))
    salt = _text(fields.get("cache_salt")) or salt
    return Stored(hashes, parent, tokens, size, tier, group, reusable, adapter, salt, plain)


def _hashes(value: object) -> list[BlockHash]:
    if not isinstance(value, list):
        raise ValueError("no block hashes")
    for item in value:
        if type(item) is not int and type(item) is not bytes:
            raise ValueError("a block hash that is neither a number nor bytes")
    return value


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _tier(medium: object) -> int:
    """vLLM: GPU, CPU, STORAGE; SGLang: GPU, CPU_PINNED, DISK, EXTERNAL."""
    if not isinstance(medium, str) or "GPU" in medium.upper():
        return GPU
    return CPU if medium.upper().startswith("CPU") else DISK


def _extra(keys: object, adapter: str | None, blocks: int) -> tuple[str, int]:
    """The salt, and how many blocks have no other extra key.

    One entry a block: nothing, or a list of what was hashed beside the tokens, without tags: the
    adapter's name, `[image, offset]`, on the first block the salt, a digest of embeddings.
    """
    if not isinstance(keys, list):
        return "", blocks
    salt = ""
    for number, items in enumerate(keys[:blocks]):
        if not items:
            continue
        if not isinstance(items, list):
            return salt, number
        rest = [item for item in items if adapter is None or item != adapter]
        if number == 0 and len(rest) == 1 and isinstance(rest[0], str):
            salt = rest[0]
        elif rest:
            return salt, number
    return salt, blocks
