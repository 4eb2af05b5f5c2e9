"""Tokens for tests: JSON Web Tokens signed with a private key of a file. Decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key


class KeyFileError(Exception):
    """The key cannot sign: one sentence."""


class Mint:
    """Signs with RS256 or ES256, as the key is. KeyFileError."""

    def __init__(self, pem: bytes, key_id: str | None, claims: Mapping[str, Any]) -> None:
        try:
            key = load_pem_private_key(pem, password=None)
        except (ValueError, TypeError) as error:
            raise KeyFileError(f"not a private key in PEM without a password: {error}") from error
        self._key: RSAPrivateKey | EllipticCurvePrivateKey
        if isinstance(key, RSAPrivateKey):
            self._key, self.algorithm = key, "RS256"
        elif isinstance(key, EllipticCurvePrivateKey) and isinstance(key.curve, SECP256R1):
            self._key, self.algorithm = key, "ES256"
        else:
            raise KeyFileError("neither an RSA key (RS256) nor one on the curve P-256 (ES256)")
        self._headers = {"kid": key_id} if key_id else None
        self._claims = dict(claims)

    def __repr__(self) -> str:
        return f"<Mint {self.algorithm}>"

    def token(self, subject: str, now: int, lifetime_s: int) -> str:
        """`now`: seconds since 1970. The claims given before win over those made here."""
        claims = {"sub": subject, "iat": now, "nbf": now, "exp": now + lifetime_s, **self._claims}
        return jwt.encode(claims, self._key, algorithm=self.algorithm, headers=self._headers)
