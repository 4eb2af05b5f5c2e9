"""The form of an API key, which tells a mistyped one from a wrong one. Pure.

`hr_`, 32 random bytes in base62, and a checksum in base62, as in `hr_<43><6>`. A key has 256 bits
of entropy, so one pass of SHA-256 keeps it: there is nothing to guess from the hash.
"""

from __future__ import annotations

import hashlib
import re
import zlib

PREFIX = "hr_"
ENTROPY_BYTES = 32
KEY_CHARS = 52

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_BODY_CHARS, _CHECKSUM_CHARS = 43, 6
_match = re.compile(rb"hr_([0-9A-Za-z]{43})([0-9A-Za-z]{6})").fullmatch


def make_key(entropy: bytes) -> str:
    """The key of `entropy`: 32 bytes that nobody can predict."""
    if len(entropy) != ENTROPY_BYTES:
        raise ValueError(f"expected {ENTROPY_BYTES} bytes, got {len(entropy)}")
    body = _base62(int.from_bytes(entropy, "big"), _BODY_CHARS)
    return PREFIX + body + _checksum(body.encode("ascii"))


def looks_like_key(credential: bytes) -> bool:
    """Whether `credential` is meant as an API key, rightly spelt or not. No JSON Web Token begins
    like this: `hr_` is no base64url of JSON."""
    return credential.startswith(b"hr_")


def is_key(credential: bytes) -> bool:
    """Whether `credential` has the form of a key and a checksum that fits."""
    found = _match(credential)
    return found is not None and _checksum(found[1]) == found[2].decode("ascii")


def digest_of(key: bytes) -> bytes:
    """What is kept of a key: its SHA-256."""
    return hashlib.sha256(key).digest()


def _checksum(body: bytes) -> str:
    return _base62(zlib.crc32(body), _CHECKSUM_CHARS)


def _base62(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, digit = divmod(number, 62)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))
