from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth.api_key import KEY_CHARS, digest_of, is_key, looks_like_key, make_key


@given(st.binary(min_size=32, max_size=32))
def test_every_key_has_the_form(entropy: bytes) -> None:
    key = make_key(entropy).encode()
    assert len(key) == KEY_CHARS
    assert looks_like_key(key)
    assert is_key(key)


def test_keys_of_different_entropy_differ() -> None:
    made = {make_key(bytes([n]) + bytes(31)) for n in range(256)}
    assert len(made) == 256


@pytest.mark.parametrize("count", [0, 31, 33])
def test_entropy_has_32_bytes(count: int) -> None:
    with pytest.raises(ValueError, match=f"got {count}"):
        make_key(bytes(count))


@given(st.binary(min_size=32, max_size=32), st.integers(3, KEY_CHARS - 1), st.data())
def test_a_mistyped_key_is_seen(entropy: bytes, place: int, data: st.DataObject) -> None:
    key = bytearray(make_key(entropy).encode())
    others = [c for c in b"059AZaz" if c != key[place]]
    key[place] = data.draw(st.sampled_from(others))
    assert not is_key(bytes(key))


@pytest.mark.parametrize(
    "text", [b"", b"hr_", b"hr_" + b"0" * 48, b"HR_" + b"0" * 49, b"hr_" + b"-" * 49]
)
def test_what_is_no_key(text: bytes) -> None:
    assert not is_key(text)


def test_a_key_with_anything_after_it_is_none() -> None:
    key = make_key(bytes(32)).encode()
    assert not is_key(key + b"\n")
    assert not is_key(key + b"0")


def test_a_token_does_not_look_like_a_key() -> None:
    assert not looks_like_key(b"eyJhbGciOiJFUzI1NiJ9.e30.e30")


def test_what_is_kept_is_the_hash() -> None:
    assert digest_of(b"hr_x") == hashlib.sha256(b"hr_x").digest()
