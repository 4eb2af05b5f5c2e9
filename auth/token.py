"""A JSON Web Token, from bytes to verified claims. Pure: the wall clock's `now` is an argument.

RFC 7519, with what RFC 8725 advises: nothing in the token chooses how it is verified. Cheap
checks come before the signature, on the very bytes that the signature covers.
"""

from __future__ import annotations

import binascii
import math
import re
from dataclasses import dataclass
from typing import Any

import orjson
from cryptography.exceptions import UnsupportedAlgorithm
from jwt import PyJWK, PyJWS
from jwt.exceptions import PyJWTError

from auth.config import ABSENT, ASYMMETRIC_ALGORITHMS, IssuerConfig
from auth.keyset import MAX_KID_CHARS

MAX_TOKEN_BYTES = 8 * 1024
_LATEST_INSTANT = 253_402_300_799
"""The end of the year 9999; a later `exp` is a mistake or a trick."""

_match_token = re.compile(rb"([\w-]+)\.([\w-]+)\.([\w-]+)", re.ASCII).fullmatch
_jws = PyJWS(algorithms=ASYMMETRIC_ALGORITHMS)
_JWS_OPTIONS: Any = {"enforce_minimum_key_length": True}


class TokenRefused(Exception):
    """The token does not hold. `str()` says why, for the operator and never for the client."""


class TokenNotYet(TokenRefused):
    """It may hold later: once its time has come, its key is shown, or it is allowed again."""


@dataclass(frozen=True, slots=True)
class UnverifiedToken:
    """What a token says of itself. Believe nothing of it before `verify_signature`."""

    raw: bytes
    header: dict[str, Any]
    claims: dict[str, Any]

    @property
    def issuer(self) -> object:
        return self.claims.get("iss")

    @property
    def algorithm(self) -> str:
        algorithm: str = self.header["alg"]
        return algorithm

    @property
    def kid(self) -> str | None:
        return self.header.get("kid")


def bearer_token(authorization: bytes | None) -> bytes:
    """The token of the header `Authorization` (RFC 6750 section 2.1). Raises TokenRefused."""
    if authorization is None or authorization[:7].lower() != b"bearer ":
        raise TokenRefused("no bearer token")
    return authorization[7:].lstrip(b" ")


def read_token(raw: bytes) -> UnverifiedToken:
    """Take `raw` apart. Only the JWS compact form, only canonical base64url, no padding: one
    token has one spelling. Raises TokenRefused."""
    if len(raw) > MAX_TOKEN_BYTES:
        raise TokenRefused("too long")
    match = _match_token(raw)
    if match is None:
        raise TokenRefused("not three parts of base64url")
    header = _object(match[1])
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str):
        raise TokenRefused("no algorithm")
    if "kid" in header and not (isinstance(kid, str) and len(kid) <= MAX_KID_CHARS):
        raise TokenRefused("not a key id")
    if "crit" in header or "b64" in header:
        raise TokenRefused("an extension that is not understood")
    return UnverifiedToken(raw, header, _object(match[2]))


def check_token(token: UnverifiedToken, issuer: IssuerConfig, now: float) -> float:
    """Everything about `token` but its signature and issuer. Raises TokenRefused.

    Returns the instant (wall clock, Unix seconds, leeway included) at which it stops to hold.
    """
    if token.algorithm not in issuer.algorithms:
        raise TokenRefused("algorithm not allowed")
    _check_type(token.header, issuer)
    _check_audience(token.claims.get("aud"), issuer)
    return _check_times(token.claims, issuer, now)


def verify_signature(token: UnverifiedToken, key: PyJWK) -> None:
    """Raises TokenRefused unless `key`, with the algorithm that it is bound to, signed `token`."""
    try:
        _jws.decode(token.raw, key, algorithms=[key.algorithm_name], options=_JWS_OPTIONS)
    except (PyJWTError, UnsupportedAlgorithm, ValueError, TypeError) as error:
        raise TokenRefused("signature does not hold") from error


def _object(part: bytes) -> dict[str, Any]:
    try:
        content = orjson.loads(_decode(part))
    except ValueError as error:
        raise TokenRefused("not base64url of JSON") from error
    if not isinstance(content, dict):
        raise TokenRefused("not a JSON object")
    return content


def _decode(part: bytes) -> bytes:
    standard = part.replace(b"-", b"+").replace(b"_", b"/") + b"=" * (-len(part) % 4)
    return binascii.a2b_base64(standard, strict_mode=True)


def _check_type(header: dict[str, Any], issuer: IssuerConfig) -> None:
    if "typ" not in header:
        if ABSENT not in issuer.types:
            raise TokenRefused("no type")
        return
    value = header["typ"]
    if isinstance(value, str):
        # RFC 7515 section 4.1.9: `application/` may be left out; media types have no case.
        value = value.lower().removeprefix("application/")
        if any(value == allowed.lower() for allowed in issuer.types if allowed != ABSENT):
            return
    raise TokenRefused("type not allowed")


def _check_audience(value: object, issuer: IssuerConfig) -> None:
    audiences = value if isinstance(value, list) else [value]
    if not any(isinstance(name, str) and name in issuer.audiences for name in audiences):
        raise TokenRefused("not meant for us")


def _check_times(claims: dict[str, Any], issuer: IssuerConfig, now: float) -> float:
    leeway = issuer.leeway_s
    expires_at = _instant(claims, "exp")
    if expires_at is None:
        raise TokenRefused("no expiry")
    if now >= expires_at + leeway:
        raise TokenRefused("expired")
    if issuer.max_lifetime_s is not None and expires_at > now + issuer.max_lifetime_s + leeway:
        raise TokenNotYet("expires too late")
    for name in ("nbf", "iat"):
        starts_at = _instant(claims, name)
        if starts_at is not None and starts_at > now + leeway:
            raise TokenNotYet("not valid yet")
    return expires_at + leeway


def _instant(claims: dict[str, Any], name: str) -> float | None:
    """A NumericDate (RFC 7519 section 2), or None when the claim is not there."""
    if name not in claims:
        return None
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TokenRefused(f"{name} is not a number")
    if not (math.isfinite(value) and 0 <= value <= _LATEST_INSTANT):
        raise TokenRefused(f"{name} is out of range")
    return value
