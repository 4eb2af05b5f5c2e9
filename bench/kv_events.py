"""`python -m bench.kv_events`: what following an engine's cache costs, in CPU time and memory.

Batches as an engine publishes them, one for each prompt: decoded, mapped to canonical blocks and
put into the prefix index; then all of it removed again. Of several rounds the quickest counts.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import tracemalloc

import msgspec

from backend.kv.events import decode_batch
from routing.exact_cache import ExactCache
from routing.index import PrefixIndex

BLOCK = 64
ROUNDS = 5


def batches(prompts: int, tokens: int, engine_block: int) -> tuple[list[bytes], list[bytes]]:
    """What stores the blocks of the prompts, and what removes them."""
    chance = random.Random(1)
    stored, removed = [], []
    for _ in range(prompts):
        names = [chance.getrandbits(64) for _ in range(tokens // engine_block)]
        event = {
            "type": "BlockStored",
            "block_hashes": names,
            "parent_block_hash": None,
            "token_ids": [chance.randrange(150_000) for _ in range(len(names) * engine_block)],
            "block_size": engine_block,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [["a salt"], *[None] * (len(names) - 1)],
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
        gone = {"type": "BlockRemoved", "block_hashes": names[::-1], "medium": "GPU"}
        stored.append(msgspec.msgpack.encode([1.0, [event], 0]))
        removed.append(msgspec.msgpack.encode([1.0, [gone], 0]))
    return stored, removed


def fresh() -> ExactCache:
    index = PrefixIndex(4_000_000)
    place = index, index.add(1_000_000)
    cache = ExactCache(BLOCK, lambda adapter, salt: 1, lambda: place)
    cache.use(True)
    return cache


def follow(cache: ExactCache, data: list[bytes]) -> float:
    """Seconds of CPU time for each batch."""
    start = time.process_time()
    for batch in data:
        cache.apply(0, decode_batch(batch).events)
    return (time.process_time() - start) / len(data)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.kv_events", description=__doc__)
    parser.add_argument("--tokens", type=int, default=8_192, help="new tokens of a prompt")
    parser.add_argument("--engine-block", type=int, default=16, help="tokens in an engine's block")
    parser.add_argument("--prompts", type=int, default=50)
    asked = parser.parse_args()
    stored, removed = batches(asked.prompts, asked.tokens, asked.engine_block)
    rounds = []
    for _ in range(ROUNDS):
        cache = fresh()
        rounds.append((follow(cache, stored), follow(cache, removed)))
    best, gone = (min(times) for times in zip(*rounds, strict=True))
    print(
        f"{asked.tokens} new tokens: {best * 1e6:.0f} us, {best / asked.tokens * 1e6:.2f} a token"
    )
    print(f"to remove them: {gone * 1e6:.0f} us")
    tracemalloc.start()
    cache = fresh()
    follow(cache, stored)
    held = tracemalloc.get_traced_memory()[0] / (asked.tokens * asked.prompts)
    print(f"memory: {held:.0f} MB for each million tokens that are cached")
    return 0


if __name__ == "__main__":
    sys.exit(main())
