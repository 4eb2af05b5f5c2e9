from __future__ import annotations

import array

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from routing import blocks
from routing.blocks import chain, seed

tokens = st.lists(st.integers(0, 3), max_size=40)


def data(ids: list[int]) -> bytes:
    return array.array("I", ids).tobytes()


@given(tokens, tokens)
def test_equal_hash_is_equal_prefix(first: list[int], second: list[int]) -> None:
    one, two = chain(data(first), 4, 9), chain(data(second), 4, 9)
    assert len(one) == len(first) // 4
    for k, (a, b) in enumerate(zip(one, two, strict=False), start=1):
        assert (a == b) == (first[: 4 * k] == second[: 4 * k])


def test_the_chain_is_what_it_says() -> None:
    ids = data(list(range(8)))
    head = xxhash.xxh3_64_intdigest(ids[:16], seed=5)
    assert chain(ids, 4, 5) == [head, xxhash.xxh3_64_intdigest(ids[16:], seed=head)]


def test_partial_blocks_have_no_hash() -> None:
    assert chain(b"", 64, 1) == []
    assert chain(bytes(255), 64, 1) == []
    assert len(chain(bytes(256), 64, 1)) == 1
    assert len(chain(bytes(511), 64, 1)) == 1


def test_blocks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = data(list(range(100)))
    whole = chain(ids, 4, 1)
    monkeypatch.setattr(blocks, "MOST_BLOCKS", 7)
    assert chain(ids, 4, 1) == whole[:7]


def test_the_seed_depends_on_all_three() -> None:
    seeds = {
        seed(secret, model, salt)
        for secret in (b"", b"a")
        for model, salt in (("m", ""), ("m", "t"), ("mt", ""), ("n", "t"), ("m\ud800", "t"))
    }
    assert len(seeds) == 10
    assert all(0 <= value < 2**64 for value in seeds)
    assert seed(b"s", "m", "t") == seed(b"s", "m", "t")


def test_another_salt_shares_no_block() -> None:
    ids = data(list(range(640)))
    one = chain(ids, 64, seed(b"s", "m", "one"))
    two = chain(ids, 64, seed(b"s", "m", "two"))
    assert len(one) == 10
    assert not set(one) & set(two)
