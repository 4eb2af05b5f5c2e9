"""What engines tell of their prefix caches, whatever engine said it in whichever encoding."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

BlockHash = int | bytes
"""An engine's own name of a block and all before it. Only ever compared, never computed."""

GPU, CPU, DISK = range(3)
"""Tiers, the fastest first."""
TIERS = 3


class Trust(Enum):
    """How far what is known of a replica's cache can be trusted.

    `EXACT`: its events tell, and none is missing. `RECOVERING`: some may be missing and are being
    asked for. `APPROX`: it tells nothing; judged by what was sent there.
    """

    APPROX = "approx"
    RECOVERING = "recovering"
    EXACT = "exact"


class Stored(NamedTuple):
    """Blocks of `block_tokens` tokens each, one after another, the first after `parent` (None: at
    the start of a prompt). `group` is the KV cache group, `reusable` whether a block of it serves
    every prompt with that prefix (full attention). `plain`: how many of the first blocks depend
    on nothing but adapter, salt and tokens; later ones hold images or embeddings."""

    hashes: Sequence[BlockHash]
    parent: BlockHash | None
    token_ids: Sequence[int]
    block_tokens: int
    tier: int = GPU
    group: int = 0
    reusable: bool = True
    adapter: str | None = None
    salt: str = ""
    plain: int = 1 << 30


class Removed(NamedTuple):
    """Blocks that are in `tier` once less than before."""

    hashes: Sequence[BlockHash]
    tier: int = GPU
    group: int = 0


class Cleared(NamedTuple):
    """Nothing is cached any more."""


Event = Stored | Removed | Cleared
