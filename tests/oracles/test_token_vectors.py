"""Vectors of C2SP/wycheproof: what is invalid there is refused here, and never otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from beside import beside
from cryptography.hazmat.primitives.asymmetric import ec

from auth.config import ASYMMETRIC_ALGORITHMS, AuthConfig, IssuerConfig, JwksConfig
from auth.keyset import KeySet, KeySetError
from auth.token import TokenRefused, UnverifiedToken, read_token, verify_signature
from auth.verifier import REFUSAL, TokenVerifier
from core.errors import Unauthenticated
from core.metrics import Metrics

WALL = 1_700_000_000.0
_FOLDER = "corpora/wycheproof"
_FILES = ("json_web_signature_test.json", "json_web_key_test.json", "json_web_crypto_test.json")

Vector = tuple[str, dict[str, Any], bytes, bool]
"""Name, JWKS, token, and whether it is valid."""


def _vectors() -> Iterator[Vector]:
    for file in _FILES:
        for group in json.loads(beside(f"{_FOLDER}/{file}").read_text())["testGroups"]:
            keys = group.get("public") or group["private"]
            jwks = keys if "keys" in keys else {"keys": [keys]}
            for test in group["tests"]:
                token = test.get("jws", test.get("jwe"))
                # Whole documents in the JSON form stand for tokens, too.
                text = token if isinstance(token, str) else json.dumps(token)
                name = f"{file}:{test['tcId']}:{test['comment']}"
                yield name, jwks, text.encode(), test["result"] == "valid" and "jws" in test


def _accepts(jwks: dict[str, Any], token: bytes) -> bool:
    """Whether the signature holds. The payloads of the vectors are no claims, so the token is
    read with others in their place, and then verified as it is."""
    try:
        keys = KeySet.parse(json.dumps(jwks).encode(), ASYMMETRIC_ALGORITHMS)
        read = read_token(_with_payload(token, b"e30"))
        key = keys.find(read.kid, read.algorithm)
        if key is None:
            return False
        verify_signature(UnverifiedToken(token, read.header, {}), key)
    except (KeySetError, TokenRefused):
        return False
    return True


def _with_payload(token: bytes, payload: bytes) -> bytes:
    """`token` with another payload, where its own is base64url that is not empty."""
    parts = token.split(b".")
    if len(parts) == 3 and parts[1] and b"=" not in parts[1]:
        parts[1] = payload
    return b".".join(parts)


def _is_ours(jwks: dict[str, Any], comment: str) -> bool:
    """Valid there and not here: shared secrets, empty payloads, and two keys whose own `alg` is
    not that of the token or of anything."""
    algorithms = {key.get("alg") for key in jwks["keys"]}
    if algorithms & {"HS256", "HS384", "HS512", "ES521"} or "emptyPayload" in comment:
        return False
    return not (algorithms == {"PS256"} and "Figure20" in comment)


def test_signatures() -> None:
    for name, jwks, token, valid in _vectors():
        assert _accepts(jwks, token) == (valid and _is_ours(jwks, name)), name


class _Fetcher:
    def __init__(self, *keys: dict[str, Any]) -> None:
        self._answer = json.dumps({"keys": keys}).encode()

    async def fetch(self) -> bytes:
        return self._answer


async def test_every_vector_is_refused_in_the_same_words() -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    public = jwt.algorithms.ECAlgorithm.to_jwk(private.public_key(), as_dict=True)
    ours = {**public, "kid": "good", "use": "sig"}
    content = {"iss": "https://id.example", "aud": "headrace", "sub": "alice", "exp": WALL + 600}
    good = jwt.encode(content, private, "ES256", {"kid": "good"}).encode()
    claims = good.split(b".")[1]
    jwks = JwksConfig(url="https://id.example/")
    issuer = IssuerConfig(
        issuer="https://id.example",
        audiences=("headrace",),
        jwks=jwks,
        algorithms=ASYMMETRIC_ALGORITHMS,
    )
    for name, keys, token, _ in _vectors():
        authenticator = TokenVerifier(
            AuthConfig(issuers=(issuer,)),
            Metrics.private(),
            wall_clock=lambda: WALL,
            make_fetcher=lambda _, keys=keys: _Fetcher(ours, *keys["keys"]),
        )
        assert await authenticator.verify(b"Bearer " + good)
        for shown in (token, _with_payload(token, claims)):
            with pytest.raises(Unauthenticated) as caught:
                await authenticator.verify(b"Bearer " + shown)
            assert caught.value.message == REFUSAL, name
