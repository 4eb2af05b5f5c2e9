"""A prompt, tokenized once and shared by the length check, the limits and the routing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Prompt(NamedTuple):
    """One prompt after rendering and tokenizing.

    `length` is in tokens, of all prompts of a batch together; `longest` is that of the longest
    one. When `exact` is False no tokenizer was at hand and both are estimates from bytes.
    `blocks` are chained 64-bit hashes of full blocks of `block_tokens` tokens each (byte pieces
    worth as many tokens when not exact): equal k-th hash means equal prefix up to and including
    block k. The partial last block has none. `ids` are the tokens as 32-bit little-endian numbers,
    of an exact prompt that is no batch, where replicas are to get them; otherwise None.
    """

    model: str
    length: int
    longest: int
    exact: bool
    blocks: Sequence[int]
    block_tokens: int
    ids: bytes | None = None


class Sample(NamedTuple):
    """The fields of a request that make a prompt, and the ids that it has."""

    fields: Mapping[str, Any]
    ids: Sequence[int]


class Samples(NamedTuple):
    """By which a model's replicas are asked whether they make the same prompts: `chats` (two or
    more, of different lengths, or none without a template) and a completion's `text`."""

    chats: Sequence[Sample]
    text: Sample
