"""Keys, tokens and clocks for the tests of `auth`."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import jwt
import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from auth.config import ClaimsConfig, IssuerConfig, JwksConfig
from auth.fetcher import FetchFailed

ISSUER = "https://id.example"
WALL = 1_700_000_000.0


class Clock:
    """A clock that moves only when told to."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class FakeFetcher:
    """Answers with `keys`; counts; fails when told to; waits when `gate` is set."""

    def __init__(self, *keys: dict[str, Any]) -> None:
        self.keys = list(keys)
        self.count = 0
        self.fault: FetchFailed | None = None
        self.gate: Any = None

    async def fetch(self) -> bytes:
        self.count += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        return orjson.dumps({"keys": self.keys})


class SigningKey:
    """A private key and its JWK."""

    def __init__(self, private: Any, algorithm: str, kid: str | None) -> None:
        self.private = private
        self.algorithm = algorithm
        self.kid = kid
        family = {"R": "RSAAlgorithm", "P": "RSAAlgorithm", "E": "ECAlgorithm"}[algorithm[0]]
        if algorithm == "EdDSA":
            family = "OKPAlgorithm"
        made = getattr(jwt.algorithms, family).to_jwk(private.public_key(), as_dict=True)
        made.pop("key_ops", None)
        self.jwk = made | ({} if kid is None else {"kid": kid}) | {"use": "sig"}

    def token(self, claims: dict[str, Any] | None = None, **headers: Any) -> bytes:
        """A token with good claims, changed by `claims` (None drops one) and `headers`."""
        content: dict[str, Any] = {
            "iss": ISSUER,
            "aud": "headrace",
            "sub": "alice",
            "exp": WALL + 600,
        }
        content.update(claims or {})
        content = {name: value for name, value in content.items() if value is not None}
        header = {"kid": self.kid, "typ": "JWT"} | headers
        header = {name: value for name, value in header.items() if value is not None}
        return self.sign(json.dumps(content).encode(), header)

    def sign(self, payload: bytes, header: dict[str, Any]) -> bytes:
        """Any header and payload, rightly signed."""
        header = {"alg": self.algorithm} | header
        signed = encode(json.dumps(header).encode()) + b"." + encode(payload)
        algorithm = jwt.get_algorithm_by_name(self.algorithm)
        return signed + b"." + encode(algorithm.sign(signed, self.private))


def encode(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


@pytest.fixture(scope="session")
def make_key() -> Callable[..., SigningKey]:
    rsa_keys: dict[tuple[int, int], Any] = {}

    def make(
        kid: str | None = "one", algorithm: str = "ES256", *, bits: int = 2048, number: int = 0
    ) -> SigningKey:
        private: Any
        match algorithm:
            case "ES256":
                private = ec.generate_private_key(ec.SECP256R1())
            case "ES384":
                private = ec.generate_private_key(ec.SECP384R1())
            case "EdDSA":
                private = ed25519.Ed25519PrivateKey.generate()
            case _:
                if (bits, number) not in rsa_keys:
                    rsa_keys[bits, number] = rsa.generate_private_key(65537, bits)
                private = rsa_keys[bits, number]
        return SigningKey(private, algorithm, kid)

    return make


@pytest.fixture
def make_issuer() -> Callable[..., IssuerConfig]:
    def make(**changes: Any) -> IssuerConfig:
        jwks = JwksConfig(url="https://id.example/jwks.json", **changes.pop("jwks", {}))
        claims = ClaimsConfig(**changes.pop("claims", {}))
        settings = {"issuer": ISSUER, "audiences": ("headrace",)} | changes
        return IssuerConfig(jwks=jwks, claims=claims, **settings)

    return make


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def wall() -> Clock:
    return Clock(WALL)


@pytest.fixture
def make_fetcher() -> type[FakeFetcher]:
    return FakeFetcher
