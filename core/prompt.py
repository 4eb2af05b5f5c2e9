"""A prompt, tokenized once and shared by the length check, the limits and the routing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Prompt(NamedTuple):
    """One prompt after rendering and tokenizing.

    `length` is in tokens, of all prompts of a batch together; `longest` is that of the longest
    one. When `exact` is False no tokenizer was at hand and both are estimates from bytes.
    `blocks` are chained 64-bit hashes of full blocks of `block_tokens` tokens each (byte pieces
    worth as many tokens when not exact): equal k-th hash means equal prefix up to and including
    block k. The partial last block has none.
    """

    model: str
    length: int
    longest: int
    exact: bool
    blocks: Sequence[int]
    block_tokens: int
