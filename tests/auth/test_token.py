from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jwt import PyJWK

from auth.config import IssuerConfig, JwksConfig
from auth.token import (
    MAX_TOKEN_BYTES,
    TokenRefused,
    bearer_token,
    check_token,
    read_token,
    verify_signature,
)

MakeKey = Callable[..., Any]
MakeIssuer = Callable[..., IssuerConfig]
NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("authorization", "token"),
    [
        (b"Bearer abc", b"abc"),
        (b"bearer abc", b"abc"),
        (b"BEARER   abc", b"abc"),
        (b"Bearer ", b""),
    ],
)
def test_the_scheme_has_no_case(authorization: bytes, token: bytes) -> None:
    assert bearer_token(authorization) == token


@pytest.mark.parametrize("authorization", [None, b"", b"Bearer", b"Basic abc", b"Bearer\tabc"])
def test_no_bearer_token(authorization: bytes | None) -> None:
    with pytest.raises(TokenRefused):
        bearer_token(authorization)


def test_a_good_token(make_key: MakeKey, make_issuer: MakeIssuer) -> None:
    key = make_key()
    token = read_token(key.token())
    assert (token.kid, token.algorithm) == ("one", "ES256")
    assert check_token(token, make_issuer(), NOW) == NOW + 630
    verify_signature(token, PyJWK(key.jwk, "ES256"))


def test_one_token_has_one_spelling(make_key: MakeKey) -> None:
    key = make_key()
    good = key.token()
    header, payload, signature = good.split(b".")
    # The last character of a 64-byte signature carries four bits that nobody reads.
    last = signature[-1:]
    alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    other = alphabet[alphabet.index(last) + 1 :][:1] or b"A"
    public = PyJWK(key.jwk, "ES256")
    verify_signature(read_token(good), public)
    with pytest.raises(TokenRefused):
        verify_signature(read_token(b".".join((header, payload, signature[:-1] + other))), public)
    for bad in (
        good + b"=",
        good + b"==",
        good + b".",
        good + b".a",
        good + b"\n",
        b" " + good,
        header + b"." + payload,
        header + b".." + signature,
        good.replace(b".", b"%2e"),
        "é".encode() + good,
        header + b"A." + payload + b"." + signature,
    ):
        with pytest.raises(TokenRefused):
            read_token(bad)


def test_size_is_checked_first() -> None:
    with pytest.raises(TokenRefused, match="too long"):
        read_token(b"a" * (MAX_TOKEN_BYTES + 1))


@pytest.mark.parametrize(
    "header",
    [
        {"alg": None},
        {"alg": ["ES256"]},
        {"kid": 7},
        {"kid": None},
        {"kid": "k" * 257},
        {"crit": []},
        {"crit": ["b64"], "b64": False},
        {"crit": ["exp"], "exp": 1},
        {"b64": True},
    ],
)
def test_headers_that_are_refused(make_key: MakeKey, header: dict[str, Any]) -> None:
    with pytest.raises(TokenRefused):
        read_token(make_key().sign(b"{}", header))


@pytest.mark.parametrize(
    "payload", [b"", b"[]", b"1", b'"a"', b"{", b'{"exp": NaN}', b"\xff", b"\xef\xbb\xbf{}"]
)
def test_payloads_that_are_refused(make_key: MakeKey, payload: bytes) -> None:
    with pytest.raises(TokenRefused):
        read_token(make_key().sign(payload, {}))


@pytest.mark.parametrize("algorithm", ["HS256", "none", "None", "RS512", "es256", ""])
def test_algorithms_that_are_not_allowed(
    make_key: MakeKey, make_issuer: MakeIssuer, algorithm: str
) -> None:
    token = read_token(make_key().token(alg=algorithm))
    with pytest.raises(TokenRefused, match="algorithm"):
        check_token(token, make_issuer(), NOW)


@pytest.mark.parametrize("name", ["JWT", "jwt", "at+jwt", "AT+JWT", "application/at+jwt", None])
def test_types_that_are_allowed(make_key: MakeKey, make_issuer: MakeIssuer, name: str) -> None:
    check_token(read_token(make_key().token(typ=name)), make_issuer(), NOW)


@pytest.mark.parametrize("name", ["dpop+jwt", "id+jwt", "logout+jwt", "absent", "", 5, ["JWT"]])
def test_types_that_are_refused(make_key: MakeKey, make_issuer: MakeIssuer, name: object) -> None:
    with pytest.raises(TokenRefused, match="type"):
        check_token(read_token(make_key().token(typ=name)), make_issuer(), NOW)


def test_an_absent_type_can_be_refused(make_key: MakeKey, make_issuer: MakeIssuer) -> None:
    token = read_token(make_key().token(typ=None))
    with pytest.raises(TokenRefused, match="type"):
        check_token(token, make_issuer(types=("at+jwt",)), NOW)


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": None},
        {"aud": "other"},
        {"aud": "headrace2"},
        {"aud": ["other"]},
        {"aud": []},
        {"aud": {"headrace": 1}},
        {"aud": [["headrace"]]},
        {"exp": None},
        {"exp": NOW - 30},
        {"exp": str(int(NOW + 60))},
        {"exp": True},
        {"exp": [NOW + 60]},
        {"exp": 1e308},
        {"exp": -1},
        {"exp": 253402300800},
        {"nbf": NOW + 31},
        {"nbf": "soon"},
        {"iat": NOW + 31},
        {"iat": "now"},
    ],
)
def test_claims_that_are_refused(
    make_key: MakeKey, make_issuer: MakeIssuer, claims: dict[str, Any]
) -> None:
    with pytest.raises(TokenRefused):
        check_token(read_token(make_key().token(claims)), make_issuer(), NOW)


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": ["other", "headrace"]},
        {"exp": NOW - 29},
        {"exp": NOW + 0.5},
        {"nbf": NOW + 29, "iat": NOW + 29},
    ],
)
def test_claims_that_are_fine(
    make_key: MakeKey, make_issuer: MakeIssuer, claims: dict[str, Any]
) -> None:
    check_token(read_token(make_key().token(claims)), make_issuer(), NOW)


def test_a_lifetime_can_be_capped(make_key: MakeKey, make_issuer: MakeIssuer) -> None:
    token = read_token(make_key().token({"exp": NOW + 3700}))
    check_token(token, make_issuer(), NOW)
    with pytest.raises(TokenRefused, match="too late"):
        check_token(token, make_issuer(max_lifetime_s=3600), NOW)


@pytest.mark.parametrize("algorithm", ["ES256", "RS256", "PS256", "EdDSA"])
def test_signatures(make_key: MakeKey, algorithm: str) -> None:
    key, other = make_key("one", algorithm), make_key("one", algorithm, number=1)
    public = PyJWK(key.jwk, algorithm)
    verify_signature(read_token(key.token()), public)
    with pytest.raises(TokenRefused):
        verify_signature(read_token(other.token()), public)


def test_a_key_verifies_with_its_own_algorithm_only(make_key: MakeKey) -> None:
    key, public = make_key("one", "RS256"), make_key("one", "PS256").jwk
    with pytest.raises(TokenRefused):
        verify_signature(read_token(key.token()), PyJWK(public, "PS256"))


def test_keys_inside_the_token_are_not_used(make_key: MakeKey) -> None:
    key, attacker = make_key(), make_key()
    token = attacker.token(
        jwk=attacker.jwk, jku="https://evil.example/", x5u="https://evil.example/"
    )
    with pytest.raises(TokenRefused):
        verify_signature(read_token(token), PyJWK(key.jwk, "ES256"))


_ISSUER = IssuerConfig(
    issuer="https://id.example", audiences=("headrace",), jwks=JwksConfig(url="https://id.example")
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
_CLAIMS = st.dictionaries(st.sampled_from(["exp", "nbf", "iat", "aud", "iss", "sub"]), _JSON)
_HEADERS = st.dictionaries(st.sampled_from(["typ", "kid", "crit", "b64", "jwk"]), _JSON)


@given(claims=_CLAIMS, header=_HEADERS)
def test_rightly_signed_nonsense_is_refused_or_accepted(
    make_key: MakeKey, claims: dict[str, Any], header: dict[str, Any]
) -> None:
    key = make_key("one", "RS256")
    try:
        token = read_token(key.sign(json.dumps(claims).encode(), header))
        check_token(token, _ISSUER, NOW)
        verify_signature(token, PyJWK(key.jwk, "RS256"))
    except TokenRefused:
        return
    assert claims["exp"] > NOW - 31


@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_no_flipped_bit_is_accepted(make_key: MakeKey, position: int, bit: int) -> None:
    key = make_key("one", "RS256")
    good = key.token()
    public = PyJWK(key.jwk, "RS256")
    verify_signature(read_token(good), public)
    flipped = bytearray(good)
    flipped[position % len(good)] ^= 1 << bit
    with pytest.raises(TokenRefused):
        verify_signature(read_token(bytes(flipped)), public)
