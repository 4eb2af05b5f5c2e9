from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth.config import DEFAULT_ALGORITHMS
from auth.keyset import MAX_DOCUMENT_BYTES, KeySet, KeySetError

MakeKey = Callable[..., Any]


def parse(*members: Any) -> KeySet:
    return KeySet.parse(orjson.dumps({"keys": list(members)}), DEFAULT_ALGORITHMS)


def test_keys_are_found_by_id_and_algorithm(make_key: MakeKey) -> None:
    curve, modulus, edwards = make_key("a"), make_key("b", "RS256"), make_key("c", "EdDSA")
    keys = parse(curve.jwk, modulus.jwk, edwards.jwk)
    assert keys.skipped == 0
    for kid, algorithm in (("a", "ES256"), ("b", "RS256"), ("b", "PS256"), ("c", "EdDSA")):
        found = keys.find(kid, algorithm)
        assert found is not None
        assert (found.key_id, found.algorithm_name) == (kid, algorithm)
    for kid, algorithm in (("a", "RS256"), ("b", "ES256"), ("b", "RS512"), ("d", "ES256")):
        assert keys.find(kid, algorithm) is None


def test_the_algorithm_of_a_key_binds_it(make_key: MakeKey) -> None:
    keys = parse(make_key("b", "RS256").jwk | {"alg": "PS256"})
    assert keys.find("b", "RS256") is None
    assert keys.find("b", "PS256") is not None


def test_without_an_id_the_only_fitting_key(make_key: MakeKey) -> None:
    curve, modulus = make_key("a").jwk, make_key("b", "RS256").jwk
    assert parse(curve, modulus).find(None, "ES256") is not None
    assert parse(curve, make_key("c").jwk).find(None, "ES256") is None
    assert parse(modulus).find(None, "ES256") is None


@pytest.mark.parametrize(
    "change",
    [
        {"use": "enc"},
        {"use": None},
        {"use": ["sig"]},
        {"key_ops": ["encrypt"]},
        {"key_ops": []},
        {"key_ops": "verify"},
        {"alg": "RS256"},
        {"alg": "HS256"},
        {"alg": "none"},
        {"alg": ["ES256"]},
        {"kty": "oct"},
        {"kty": "RSA"},
        {"kty": ["EC"]},
        {"kty": None},
        {"crv": "P-384"},
        {"crv": "secp256k1"},
        {"crv": ["P-256"]},
        {"crv": None},
        {"x": "AAAA"},
        {"x": 5},
        {"y": None},
        {"kid": 7},
        {"kid": ""},
        {"kid": "k" * 257},
        {"d": "AAAA"},
        {"k": "AAAA"},
    ],
)
def test_a_bad_member_is_skipped_and_the_rest_is_kept(
    make_key: MakeKey, change: dict[str, Any]
) -> None:
    good = make_key("good")
    keys = parse(make_key("bad").jwk | change, good.jwk)
    assert keys.skipped == 1
    assert keys.find("good", "ES256") is not None
    assert keys.find("bad", "ES256") is None
    assert keys.find(None, "ES256") is not None


@pytest.mark.parametrize("member", [None, 1, "key", [], {}, True])
def test_members_that_are_no_objects(make_key: MakeKey, member: object) -> None:
    assert parse(member, make_key("good").jwk).skipped == 1


def test_weak_rsa_keys(make_key: MakeKey) -> None:
    good = make_key("good")
    small = make_key("small", "RS256", bits=1024).jwk
    even = make_key("even", "RS256").jwk | {"e": "BA"}
    one = make_key("one", "RS256").jwk | {"e": "AQ"}
    keys = parse(small, even, one, good.jwk)
    assert keys.skipped == 3
    assert keys.find("small", "RS256") is None


def test_key_ops_with_verify(make_key: MakeKey) -> None:
    assert parse(make_key("a").jwk | {"key_ops": ["verify", "sign"]}).find("a", "ES256")


def test_one_id_for_two_keys_is_ambiguous(make_key: MakeKey) -> None:
    first, second, good = make_key("a"), make_key("a"), make_key("good")
    keys = parse(first.jwk, good.jwk, second.jwk)
    assert keys.find("a", "ES256") is None
    assert keys.skipped == 2
    assert keys.find("good", "ES256") is not None


def test_one_key_given_twice_is_one_key(make_key: MakeKey) -> None:
    key = make_key("a")
    keys = parse(key.jwk, key.jwk)
    assert keys.find("a", "ES256") is not None
    assert keys.find(None, "ES256") is not None


def test_one_id_for_keys_of_different_types(make_key: MakeKey) -> None:
    keys = parse(make_key("a").jwk, make_key("a", "EdDSA").jwk)
    assert keys.find("a", "ES256") is not None
    assert keys.find("a", "EdDSA") is not None


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"<html>",
        b"[]",
        b"null",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": []}',
        b'{"keys": [1]}',
        b'{"keys": [' + b",".join([b"{}"] * 101) + b"]}",
        b'{"keys": []}' + b" " * MAX_DOCUMENT_BYTES,
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
    ],
)
def test_documents_that_are_refused(document: bytes) -> None:
    with pytest.raises(KeySetError):
        KeySet.parse(document, DEFAULT_ALGORITHMS)


_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=8), st.just("AQAB")
)
_VALUE = st.one_of(_VALUES, st.lists(_VALUES, max_size=3), st.sampled_from(["EC", "RSA", "OKP"]))
_NAMES = ("kty", "alg", "use", "kid", "crv", "x", "y", "n", "e", "key_ops", "d")


@given(st.lists(st.dictionaries(st.sampled_from(_NAMES), _VALUE), max_size=4))
def test_no_member_breaks_the_parser(members: list[dict[str, Any]]) -> None:
    with contextlib.suppress(KeySetError):
        parse(*members)
