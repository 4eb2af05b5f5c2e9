"""An issuer's public keys, from the bytes of a JWKS document. Pure.

A member that cannot be trusted for verifying is skipped and counted; the others stay usable.
Each key is bound to the algorithms that it may verify (RFC 8725 section 3.1), so a token's `alg`
never chooses how a key is used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import orjson
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import PyJWK
from jwt.exceptions import PyJWTError

MAX_DOCUMENT_BYTES = 512 * 1024
MAX_KEYS = 100
MAX_KID_CHARS = 256
RSA_BITS = range(2048, 8193)

_RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_EC_ALGORITHMS = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
_KEY_FAULTS = (
    *(PyJWTError, UnsupportedAlgorithm, ValueError, TypeError),
    *(KeyError, AttributeError, OverflowError),
)
_PRIVATE_MEMBERS = ("d", "k", "p", "q")


class KeySetError(Exception):
    """The document is not a JWKS with at least one usable key. `str()` names the fault."""


class KeySet:
    """The usable keys of one document, looked up by key id and algorithm. Immutable.

    `skipped` counts members that were left out.
    """

    __slots__ = ("_by_algorithm", "_by_kid", "skipped")

    def __init__(self, keys: Mapping[tuple[str | None, str], list[PyJWK]], skipped: int) -> None:
        self.skipped = skipped
        self._by_kid: dict[tuple[str, str], PyJWK] = {}
        self._by_algorithm: dict[str, list[PyJWK]] = {}
        for (kid, algorithm), found in keys.items():
            if kid is not None:
                found = found[:1]
                self._by_kid[kid, algorithm] = found[0]
            self._by_algorithm.setdefault(algorithm, []).extend(found)

    @classmethod
    def parse(cls, document: bytes, algorithms: Collection[str]) -> KeySet:
        """Read `document` (RFC 7517 section 5), keeping what can verify one of `algorithms`.

        Two different keys of one key id and algorithm are ambiguous: neither is kept. Raises
        KeySetError.
        """
        members = _members(document)
        found: dict[tuple[str | None, str], dict[int, PyJWK]] = {}
        for index, member in enumerate(members):
            for key in _usable(member, algorithms):
                found.setdefault((key.key_id, key.algorithm_name), {})[index] = key
        kept = {
            name: list(keys.values())
            for name, keys in found.items()
            if name[0] is None or _same(list(keys.values()))
        }
        if not kept:
            raise KeySetError("the key set has no key that can be used")
        indexes = {index for name in kept for index in found[name]}
        return cls(kept, len(members) - len(indexes))

    def find(self, kid: str | None, algorithm: str) -> PyJWK | None:
        """The key that a token names; without a name only the single key that fits, if any."""
        if kid is not None:
            return self._by_kid.get((kid, algorithm))
        fitting = self._by_algorithm.get(algorithm, ())
        return fitting[0] if len(fitting) == 1 else None

    def __repr__(self) -> str:
        return f"KeySet({sorted(self._by_kid)}, skipped={self.skipped})"


def _members(document: bytes) -> list[Any]:
    if len(document) > MAX_DOCUMENT_BYTES:
        raise KeySetError(f"the key set is larger than {MAX_DOCUMENT_BYTES} bytes")
    try:
        content = orjson.loads(document)
    except orjson.JSONDecodeError as error:
        raise KeySetError("the key set is not JSON") from error
    members = content.get("keys") if isinstance(content, dict) else None
    if not isinstance(members, list):
        raise KeySetError("the key set has no list `keys`")
    if len(members) > MAX_KEYS:
        raise KeySetError(f"the key set has more than {MAX_KEYS} keys")
    return members


def _usable(member: object, allowed: Collection[str]) -> Iterator[PyJWK]:
    """`member` once for each of the `allowed` algorithms that it may verify; often none."""
    if not isinstance(member, dict) or not _meant_for_verifying(member):
        return
    for algorithm in _algorithms_of(member):
        if algorithm not in allowed:
            continue
        try:
            key = PyJWK(member, algorithm)
        except _KEY_FAULTS:
            return
        if isinstance(key.key, RSAPublicKey) and not _is_sound(key.key):
            return
        yield key


def _meant_for_verifying(member: dict[str, Any]) -> bool:
    """RFC 7517 sections 4.2, 4.3 and 4.5. A published private key is anybody's key."""
    kid = member.get("kid")
    if kid is not None and not (isinstance(kid, str) and 0 < len(kid) <= MAX_KID_CHARS):
        return False
    if "use" in member and member["use"] != "sig":
        return False
    operations = member.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        return False
    return not any(name in member for name in _PRIVATE_MEMBERS)


def _algorithms_of(member: dict[str, Any]) -> tuple[str, ...]:
    """What this type of key can verify, narrowed by its own `alg` if it has one."""
    fitting: tuple[str, ...] = ()
    curve = member.get("crv")
    match member.get("kty"):
        case "RSA":
            fitting = _RSA_ALGORITHMS
        case "EC" if isinstance(curve, str) and curve in _EC_ALGORITHMS:
            fitting = (_EC_ALGORITHMS[curve],)
        case "OKP" if curve == "Ed25519":
            fitting = ("EdDSA",)
    if "alg" in member:
        # RFC 9864 names the curve where RFC 8037 named the family.
        own = "EdDSA" if member["alg"] == "Ed25519" else member["alg"]
        return tuple(name for name in fitting if name == own)
    return fitting


def _same(keys: list[PyJWK]) -> bool:
    return all(key.key == keys[0].key for key in keys)


def _is_sound(key: RSAPublicKey) -> bool:
    numbers = key.public_numbers()
    odd_exponent = numbers.e >= 3 and numbers.e % 2 == 1
    return key.key_size in RSA_BITS and odd_exponent and not _has_roca_form(numbers.n)


def _powers(base: int, modulus: int) -> frozenset[int]:
    powers = {1}
    value = base % modulus
    while value not in powers:
        powers.add(value)
        value = value * base % modulus
    return frozenset(powers)


_ROCA_PRIMES = (
    *(3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89),
    *(97, 101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157, 163, 167),
)
_ROCA_RESIDUES = tuple((prime, _powers(65537, prime)) for prime in _ROCA_PRIMES)


def _has_roca_form(modulus: int) -> bool:
    """Keys of a broken generator can be factored (CVE-2017-15361): such a modulus is a power of
    65537 modulo every small prime, which a random one is with a chance under 2 to the -27."""
    return all(modulus % prime in residues for prime, residues in _ROCA_RESIDUES)
