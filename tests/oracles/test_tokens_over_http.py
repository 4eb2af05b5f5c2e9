"""Vectors of C2SP/wycheproof and of the JOSE cookbook, shown to a running gateway over HTTP.

No payload there is a set of claims, so none of the tokens as it stands may pass. A valid one passes
once it is signed anew, by the same key and with the same header, over claims of ours: then and only
then. An invalid one does not pass with such claims in its payload either.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jwt
import orjson
import pytest
from beside import beside
from client import Client
from cryptography.hazmat.primitives.asymmetric import ec
from running import InProcess, base_config, eventually

from auth.config import ASYMMETRIC_ALGORITHMS
from loadtest.replica import FakeReplica

ISSUER = "https://id.example"
CLAIMS = {"iss": ISSUER, "aud": "headrace", "sub": "alice", "exp": 4_102_444_800}
_WYCHEPROOF = (
    "json_web_signature_test.json",
    "json_web_key_test.json",
    "json_web_crypto_test.json",
    "json_web_encryption_test.json",
)


_WITH_SIGNATURES = ("json_web_signature_test.json", "json_web_crypto_test.json", "jose-cookbook")


class Vector(NamedTuple):
    name: str
    token: str
    valid: bool
    private: dict[str, Any] | None
    """The JWK that signs, where it is one of a signature with a key pair."""


class Group(NamedTuple):
    """Vectors that belong to one set of keys."""

    keys: list[dict[str, Any]]
    vectors: list[Vector]


def _wycheproof(file: str) -> Iterator[Group]:
    for group in json.loads(beside(f"corpora/wycheproof/{file}").read_text())["testGroups"]:
        shown, private = group.get("public") or group["private"], group["private"]
        vectors = []
        for test in group["tests"]:
            token = test.get("jws", test.get("jwe"))
            text = token if isinstance(token, str) else json.dumps(token)
            name = f"{file}:{test['tcId']}:{test['comment']}"
            valid = test["result"] == "valid" and "jws" in test
            vectors.append(Vector(name, text, valid, None if "keys" in private else private))
        yield Group(shown.get("keys", [shown]), vectors)


def _cookbook() -> Iterator[Group]:
    folder = beside("corpora/jose-cookbook")
    for path in sorted(folder.rglob("*.json")):
        document = json.loads(path.read_text())
        if "output" not in document:
            continue
        output, given = document["output"], document["input"]
        keys = given.get("key", [])
        keys = keys if isinstance(keys, list) else [keys]
        vectors = []
        for form, token in output.items():
            text = token if isinstance(token, str) else json.dumps(token)
            valid = form == "compact" and path.parent.name == "jws" and len(keys) == 1
            vectors.append(Vector(f"{path.name}:{form}", text, valid, keys[0] if keys else None))
        yield Group([_public(key) for key in keys if isinstance(key, dict)], vectors)


def _public(key: dict[str, Any]) -> dict[str, Any]:
    secret = ("d", "p", "q", "dp", "dq", "qi", "oth")
    return {name: value for name, value in key.items() if name not in secret}


def encode(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


_CLAIMS = encode(json.dumps(CLAIMS).encode())


def _with_claims(token: str) -> str:
    parts = token.split(".")
    return ".".join([parts[0], _CLAIMS.decode(), *parts[2:]]) if len(parts) >= 3 else token


def _signed_anew(vector: Vector) -> str | None:
    """None where it is not for us: a shared secret, or an algorithm that the key or nobody has."""
    header = vector.token.split(".")[0]
    name = orjson.loads(base64.urlsafe_b64decode(header + "=" * (-len(header) % 4)))["alg"]
    key = vector.private
    if name not in ASYMMETRIC_ALGORITHMS or key is None or key.get("alg", name) != name:
        return None
    algorithm = jwt.get_algorithm_by_name(name)
    signed = header.encode() + b"." + _CLAIMS
    signature = algorithm.sign(signed, algorithm.from_jwk(json.dumps(key)))
    return (signed + b"." + encode(signature)).decode()


class Gateway:
    """One whose issuer shows the keys of a group and one of our own."""

    def __init__(self, gateway: InProcess, folder: Path) -> None:
        self._gateway = gateway
        self._config = folder / "headrace.yaml"
        self._key_set = folder / "jwks.json"
        self._client: Client | None = None

    async def show_keys(self, keys: list[dict[str, Any]]) -> None:
        write_keys(self._key_set, keys)
        worker = self._gateway.worker
        await worker.stage(self._config.read_bytes(), str(self._config))
        worker.commit()

    async def status(self, token: str) -> int:
        if self._client is None:
            self._client = await Client.open(self._gateway.port)
        self._client.send(
            b"", path="/v1/models", method="GET", headers={"Authorization": f"Bearer {token}"}
        )
        answer = await self._client.answer()
        if answer.headers.get("connection") == "close":
            self.close()
        return answer.status

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


_OURS = ec.generate_private_key(ec.SECP256R1())


def write_keys(path: Path, keys: list[dict[str, Any]]) -> None:
    ours = jwt.algorithms.ECAlgorithm.to_jwk(_OURS.public_key(), as_dict=True)
    ours.pop("key_ops", None)
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"keys": [{**ours, "kid": "ours", "use": "sig"}, *keys]}))
    os.replace(new, path)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    write_keys(tmp_path / "jwks.json", [])
    auth = {
        "issuers": [
            {
                "issuer": ISSUER,
                "audiences": ["headrace"],
                "jwks": {"file": "jwks.json"},
                "algorithms": list(ASYMMETRIC_ALGORITHMS),
            }
        ],
        "throttle": {"failures_per_minute": None},
    }
    async with FakeReplica() as replica:
        log = {"access": str(tmp_path / "access.jsonl"), "level": "error"}
        document = base_config([replica.url], auth=auth, log=log)
        async with InProcess(document, tmp_path) as running:
            made = Gateway(running, tmp_path)
            yield made
            made.close()


SOURCES = {file: lambda file=file: _wycheproof(file) for file in _WYCHEPROOF} | {
    "jose-cookbook": _cookbook
}


@pytest.mark.parametrize("source", SOURCES)
async def test_tokens_pass_as_the_vectors_say(
    gateway: Gateway, source: str, tmp_path: Path
) -> None:
    good = jwt.encode(CLAIMS, _OURS, "ES256", {"kid": "ours"})
    shown = passed = 0
    for group in SOURCES[source]():
        await gateway.show_keys(group.keys)
        assert await gateway.status(good) == 200
        for vector in group.vectors:
            for token in (vector.token, _with_claims(vector.token)):
                shown += 1
                assert await gateway.status(token) == 401, vector.name
            anew = _signed_anew(vector) if vector.valid else None
            if anew is not None:
                passed += 1
                assert await gateway.status(anew) == 200, vector.name

    def faults() -> list[str | None]:
        lines = (tmp_path / "access.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        return [record.get("auth_fault") for record in records if record["status"] == 401]

    async def all_are_logged() -> bool:
        return len(faults()) == shown

    assert (passed > 0) == (source in _WITH_SIGNATURES)
    await eventually(all_are_logged)
    assert all(faults())
