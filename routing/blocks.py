"""Chained hashes of a prompt's full blocks: equal k-th hash, equal prefix. Pure.

h_0 is a seed of (secret, model, salt), h_k = xxh3-64(block k, seed h_(k-1)). The secret keeps
clients from making collisions, the salt keeps tenants apart.
"""

from __future__ import annotations

import hashlib

import xxhash

TOKEN_BYTES = 4
"""Bytes of a token: of an id in its buffer, and of text when tokens are estimated."""
MOST_BLOCKS = 16_384
"""Of a prompt: a million tokens in blocks of 64. Each costs the event loop some 0.4 us until the
first token, and what a client says decides how many there are."""


def seed(secret: bytes, model: str, salt: str) -> int:
    """The 64-bit start of a chain."""
    # The length keeps ("ab", "c") and ("a", "bc") apart.
    text = f"{len(model)}:{model}{salt}".encode("utf-8", "surrogatepass")
    key = hashlib.blake2b(secret, digest_size=32).digest()
    return int.from_bytes(hashlib.blake2b(text, key=key, digest_size=8).digest(), "little")


def chain(data: bytes, block_tokens: int, start: int) -> list[int]:
    """The hashes of the full blocks of `data`: token ids as 32-bit little-endian numbers, or
    text when there is no tokenizer. A partial last block has none, nor have those beyond
    `MOST_BLOCKS`."""
    step = block_tokens * TOKEN_BYTES
    digest = xxhash.xxh3_64_intdigest
    end = min(len(data), MOST_BLOCKS * step) - step + 1
    return [start := digest(data[at : at + step], start) for at in range(0, end, step)]
