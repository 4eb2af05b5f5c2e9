"""Residency against a model of an engine that is walked from the start of each prompt."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.kv_events import CPU, DISK, GPU, Cleared, Event, Removed, Stored
from routing.blocks import MOST_BLOCKS, chain, seed
from routing.residency import NOWHERE, Residency

CANONICAL = 8
SECRET = b"s" * 32


def start(adapter: str | None, salt: str) -> int:
    return seed(SECRET, adapter or "m", salt)


def keys(tokens: Sequence[int], salt: str = "", adapter: str | None = None) -> list[int]:
    return chain(array("I", tokens).tobytes(), CANONICAL, start(adapter, salt))


class Held:
    """What a residency told."""

    def __init__(self) -> None:
        self.blocks: dict[int, int] = {}

    def hold(self, block: int, tier: int) -> None:
        self.blocks[block] = tier

    def unhold(self, block: int) -> None:
        del self.blocks[block]

    def clear(self) -> None:
        self.blocks.clear()


def made(most: int = 1000) -> tuple[Residency, Held]:
    held = Held()
    return Residency(CANONICAL, start, held, most), held


def stored(
    tokens: Sequence[int], first: int = 0, size: int = 4, salt: str = "", **fields: object
) -> Stored:
    """The blocks of `tokens` from block `first` on; an engine's hash is the text before its end."""
    names = [
        repr((salt, *tokens[:end])).encode()
        for end in range(size, len(tokens) - size + 1 + size, size)
    ]
    parent = names[first - 1] if first else None
    event = Stored(
        names[first:], parent, list(tokens[first * size : len(names) * size]), size, salt=salt
    )
    return event._replace(**fields)  # type: ignore[arg-type]


TOKENS = list(range(100, 124))


def test_a_block_is_held_when_all_of_the_engines_are() -> None:
    residency, held = made()
    residency.apply([stored(TOKENS[:12])])
    assert held.blocks == {keys(TOKENS)[0]: GPU}
    residency.apply([stored(TOKENS[:20], first=3)])
    assert list(held.blocks) == keys(TOKENS)[:2]
    residency.apply([stored(TOKENS, first=5)])
    assert list(held.blocks) == keys(TOKENS)
    residency.apply([Removed(stored(TOKENS).hashes[3:4])])
    assert list(held.blocks) == keys(TOKENS)[:1]
    residency.apply([stored(TOKENS[:16], first=3)])
    assert set(held.blocks) == set(keys(TOKENS))
    residency.apply([Cleared()])
    assert (held.blocks, len(residency)) == ({}, 0)


@pytest.mark.parametrize("size", [1, 2, 3, 8, 12, 16])
def test_sizes_of_engines_blocks(size: int) -> None:
    residency, held = made()
    event = stored(TOKENS, size=size)
    for number in range(len(event.hashes)):
        residency.apply([stored(TOKENS[: (number + 1) * size], first=number, size=size)])
        assert list(held.blocks) == keys(TOKENS[: (number + 1) * size])
    for number, name in reversed(list(enumerate(event.hashes))):
        residency.apply([Removed([name])])
        assert set(held.blocks) == set(keys(TOKENS[: number * size]))
    assert len(residency) == 0


def test_prompts_part_in_the_middle_of_a_block() -> None:
    residency, held = made()
    other = [*TOKENS[:12], 1, 2, 3, 4]
    residency.apply([stored(TOKENS), stored(other, first=3)])
    assert set(held.blocks) == {*keys(TOKENS), *keys(other)}
    residency.apply([Removed(stored(other).hashes[3:])])
    assert set(held.blocks) == set(keys(TOKENS))


def test_copies_are_counted() -> None:
    residency, held = made()
    residency.apply([stored(TOKENS), stored(TOKENS, first=5), stored(TOKENS, first=5)])
    last = Removed(stored(TOKENS).hashes[5:])
    residency.apply([last, last])
    assert len(held.blocks) == 3
    residency.apply([last])
    assert list(held.blocks) == keys(TOKENS)[:2]
    residency.apply([last, last])
    assert list(held.blocks) == keys(TOKENS)[:2]


def test_a_salt_and_an_adapter_make_other_keys() -> None:
    residency, held = made()
    residency.apply([stored(TOKENS, salt="a"), stored(TOKENS, adapter="ada", salt="b")])
    assert set(held.blocks) == {*keys(TOKENS, "a"), *keys(TOKENS, "b", "ada")}
    assert not set(held.blocks) & {*keys(TOKENS), *keys(TOKENS, "b"), *keys(TOKENS, "", "ada")}


def test_blocks_after_an_unknown_parent_are_left_out() -> None:
    residency, held = made()
    residency.apply([stored(TOKENS, first=2), stored([*TOKENS, 1, 2, 3, 4], first=6)])
    assert (held.blocks, len(residency), residency.unknown) == ({}, 0, 5)
    residency.apply([Removed(stored(TOKENS).hashes)])
    residency.apply([stored(TOKENS)])
    assert len(held.blocks) == 3


def test_blocks_with_images_are_left_out_and_all_after_them() -> None:
    residency, held = made()
    residency.apply([stored(TOKENS, plain=2), stored([*TOKENS, 1, 2, 3, 4], first=6)])
    assert list(held.blocks) == keys(TOKENS)[:1]
    assert (residency.opaque, residency.unknown) == (4, 1)


def test_tokens_that_are_none_are_left_out() -> None:
    residency, held = made()
    for odd in ("x", -1, 2**32):
        residency.apply([stored(TOKENS)._replace(token_ids=[odd] * 24)])  # type: ignore[list-item]
    assert (held.blocks, len(residency)) == ({}, 0)


def test_only_one_group_counts_and_none_of_windows() -> None:
    residency, held = made()
    residency.apply([stored(TOKENS, group=0, reusable=False)])
    assert held.blocks == {}
    residency.apply([stored(TOKENS, group=1), stored(TOKENS, group=2)])
    names = stored(TOKENS).hashes
    residency.apply([Removed(names, group=0), Removed(names, group=2)])
    assert len(held.blocks) == 3
    residency.apply([Removed(names, group=1)])
    assert held.blocks == {}


def test_tiers_are_as_slow_as_the_slowest_before() -> None:
    residency, held = made()
    first, second, third = keys(TOKENS)
    names = stored(TOKENS).hashes
    residency.apply([stored(TOKENS), stored(TOKENS[:16], first=2, tier=CPU)])
    assert held.blocks == {first: GPU, second: GPU, third: GPU}
    residency.apply([Removed(names[2:3])])
    assert held.blocks == {first: GPU, second: CPU, third: CPU}
    residency.apply([stored(TOKENS, first=4, tier=DISK), Removed(names[5:])])
    assert held.blocks == {first: GPU, second: CPU, third: DISK}
    residency.apply([Removed(names[2:3], CPU)])
    assert held.blocks == {first: GPU}


def test_it_is_bounded() -> None:
    residency, held = made(most=6)
    residency.apply([stored(TOKENS), stored(TOKENS, salt="a")])
    assert (len(residency), len(held.blocks), residency.refused) == (6, 3, 6)


def test_an_event_longer_than_any_prompt_is_cut() -> None:
    residency, held = made(most=100_000)
    tokens = list(range(CANONICAL * (MOST_BLOCKS + 2)))
    names = list(range(len(tokens) // CANONICAL))
    residency.apply([Stored(names, None, tokens, CANONICAL)])
    assert list(held.blocks) == keys(tokens)[: MOST_BLOCKS - 1]
    assert residency.refused == 3


class Engine:
    """Blocks by their whole text, with copies by tier, and prompts that share beginnings."""

    def __init__(self, chance: random.Random, size: int) -> None:
        self.chance = chance
        self.size = size
        self.copies: dict[tuple[bytes, int], int] = {}
        self.prompts: list[tuple[str, list[int]]] = []
        self.walks: list[tuple[Sequence[object], list[int]]] = []
        """Of each prompt its names and its canonical blocks."""

    def prompt(self) -> tuple[str, list[int]]:
        chance = self.chance
        salt, tokens = "", list[int]()
        if self.prompts and chance.random() < 0.7:
            salt, before = chance.choice(self.prompts)
            tokens = before[: chance.randrange(len(before) + 1)]
        else:
            salt = chance.choice(["", "a"])
        found = (salt, [*tokens, *(chance.randrange(3) for _ in range(chance.randrange(1, 30)))])
        self.prompts.append(found)
        self.walks.append((self.names(*found), keys(found[1], salt)))
        return found

    def names(self, salt: str, tokens: Sequence[int]) -> Sequence[object]:
        return stored(tokens, size=self.size, salt=salt).hashes

    def serve(self) -> list[Event]:
        """A prompt: what is missing of it is stored, and its last block once more, perhaps."""
        salt, tokens = self.prompt()
        event = stored(tokens, size=self.size, salt=salt)
        tier = self.chance.choice([GPU, GPU, CPU, DISK])
        there = 0
        for name in event.hashes:
            if not self.has(name):
                break
            there += 1
        if there == len(event.hashes) and there and self.chance.random() < 0.5:
            there -= 1
        for name in event.hashes[there:]:
            place = (name, tier)
            self.copies[place] = self.copies.get(place, 0) + 1  # type: ignore[index]
        if there == len(event.hashes):
            return []
        return [stored(tokens, first=there, size=self.size, salt=salt, tier=tier)]

    def has(self, name: object) -> bool:
        return any(place[0] == name for place in self.copies)

    def evict(self) -> list[Event]:
        if not self.copies:
            return []
        place = self.chance.choice(list(self.copies))
        self.copies[place] -= 1
        if not self.copies[place]:
            del self.copies[place]
        return [Removed([place[0]], place[1])]

    def truth(self) -> dict[int, int]:
        """Canonical blocks that a walk from the start of any prompt finds, and their tier."""
        best: dict[object, int] = {}
        for name, tier in self.copies:
            best[name] = min(tier, best.get(name, NOWHERE))
        found: dict[int, int] = {}
        for names, canonical in self.walks:
            worst, whole = GPU, 0
            for name in names:
                worst = max(worst, best.get(name, NOWHERE))
                if worst == NOWHERE:
                    break
                begin, whole = whole // CANONICAL, whole + self.size
                for key in canonical[begin : whole // CANONICAL]:
                    found[key] = min(worst, found.get(key, NOWHERE))
        return found


@given(st.integers(0, 10**6), st.sampled_from([1, 2, 3, 4, 8, 12, 16]), st.integers(1, 60))
def test_what_is_held_is_what_the_engine_would_find(seed: int, size: int, length: int) -> None:
    engine = Engine(random.Random(seed), size)
    residency, held = made()
    for _ in range(length):
        events = engine.serve() if engine.chance.random() < 0.6 else engine.evict()
        residency.apply(events)
        assert held.blocks == engine.truth()
    engine.copies.clear()
    residency.apply([Cleared()])
    assert (held.blocks, len(residency)) == ({}, 0)
