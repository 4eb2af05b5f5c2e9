"""Tokens hold what was asked for, signed as the key is."""

from __future__ import annotations

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from loadtest.minting import KeyFileError, Mint

Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
RSA = rsa.generate_private_key(65537, 2048)
P256 = ec.generate_private_key(ec.SECP256R1())


def pem(key: Key) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.mark.parametrize(("key", "algorithm"), [(RSA, "RS256"), (P256, "ES256")])
def test_a_token(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, algorithm: str) -> None:
    mint = Mint(pem(key), "k1", {"aud": "api", "groups": ["a"]})
    token = mint.token("user-1", now=1000, lifetime_s=60)
    assert jwt.get_unverified_header(token) == {"alg": algorithm, "typ": "JWT", "kid": "k1"}
    assert jwt.decode(
        token,
        key.public_key(),
        algorithms=[algorithm],
        options={"verify_exp": False, "verify_aud": False},
    ) == {
        "sub": "user-1",
        "iat": 1000,
        "nbf": 1000,
        "exp": 1060,
        "aud": "api",
        "groups": ["a"],
    }


def test_claims_of_the_command_win() -> None:
    token = Mint(pem(P256), None, {"sub": "me"}).token("user-1", now=1000, lifetime_s=60)
    assert jwt.decode(token, options={"verify_signature": False})["sub"] == "me"
    assert "kid" not in jwt.get_unverified_header(token)


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense",
        pem(ed25519.Ed25519PrivateKey.generate()),
        pem(ec.generate_private_key(ec.SECP384R1())),
    ],
    ids=["nonsense", "ed25519", "P-384"],
)
def test_other_keys_are_refused(data: bytes) -> None:
    with pytest.raises(KeyFileError):
        Mint(data, None, {})
