"""Credentials over real HTTP: each way in, what is refused, and what the log says of it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
import yaml
from authority import Authority
from client import Answer, ask, chat
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256
from running import InProcess, base_config, eventually
from tls_client import get

from auth.api_key import digest_of, make_key
from loadtest.replica import FakeReplica
from proxy.serve.__main__ import main


class Key:
    """A new API key and its entry."""

    def __init__(self, **entry: Any) -> None:
        self.text = make_key(os.urandom(32))
        self.entry = {"sha256": digest_of(self.text.encode()).hex(), "tenant": "acme"} | entry


@pytest.fixture
async def replica() -> AsyncIterator[FakeReplica]:
    async with FakeReplica() as running:
        yield running


async def models(gateway: InProcess, **headers: str) -> Answer:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return await ask(gateway.port, b"", path="/v1/models", method="GET", headers=sent)


async def test_a_key_file_is_a_way_in_and_its_change_another(
    replica: FakeReplica, tmp_path: Path
) -> None:
    first, second = Key(id="first"), Key(id="second")
    keys, log = tmp_path / "keys.yaml", tmp_path / "access.jsonl"
    keys.write_text(yaml.safe_dump({"keys": [first.entry]}))
    document = base_config(
        [replica.url], auth={"api_keys": {"file": "keys.yaml"}}, log={"access": str(log)}
    )
    async with InProcess(document, tmp_path) as gateway:
        assert (await models(gateway, authorization=f"Bearer {first.text}")).status == 200
        assert (await models(gateway, x_api_key=first.text)).status == 200
        assert (await models(gateway, x_api_key=second.text)).status == 401
        keys.write_text(yaml.safe_dump({"keys": [second.entry]}))
        path = tmp_path / "headrace.yaml"
        await gateway.worker.stage(path.read_bytes(), str(path))
        gateway.worker.commit()
        assert (await models(gateway, x_api_key=second.text)).status == 200
        refused = await models(gateway, x_api_key=first.text)
    assert refused.status == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    assert refused.json()["error"]["code"] == "invalid_api_key"
    written = log.read_text()
    lines = [json.loads(line) for line in written.splitlines()]
    assert [line.get("key") for line in lines] == ["first", "first", None, "second", None]
    assert [line.get("auth_fault") for line in lines][2:] == [
        "unknown API key",
        None,
        "unknown API key",
    ]
    assert first.text not in written
    assert second.text not in written


ISSUER = "https://id.example"
CLAIMS = {"iss": ISSUER, "aud": "headrace", "sub": "alice", "exp": 4_102_444_800}


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def jwk_of(private: Any, kid: str) -> dict[str, Any]:
    family = jwt.algorithms.RSAAlgorithm
    if isinstance(private, ec.EllipticCurvePrivateKey):
        family = jwt.algorithms.ECAlgorithm
    made: dict[str, Any] = family.to_jwk(private.public_key(), as_dict=True)
    made.pop("key_ops", None)
    return made | {"kid": kid}


class Hostile:
    """Tokens of somebody who has seen the issuer's key set, and has a key of their own."""

    def __init__(self) -> None:
        self.issuer_key = rsa.generate_private_key(65537, 2048)
        self.own_key = ec.generate_private_key(ec.SECP256R1())
        self.key_set = {"keys": [jwk_of(self.issuer_key, "one")]}

    def good(self, claims: bytes | None = None, **header: Any) -> str:
        """Rightly signed by the issuer, whatever it says."""
        payload = json.dumps(CLAIMS).encode() if claims is None else claims
        full = {"alg": "RS256", "typ": "JWT", "kid": "one"} | header
        signed = f"{encode(json.dumps(full).encode())}.{encode(payload)}"
        signature = self.issuer_key.sign(signed.encode(), PKCS1v15(), SHA256())
        return f"{signed}.{encode(signature)}"

    def own(self, **header: Any) -> str:
        return jwt.encode(CLAIMS, self.own_key, "ES256", {"kid": "one"} | header)

    def confused(self, secret: bytes) -> str:
        """HS256, with something public for the secret."""
        signed = encode(b'{"alg":"HS256","kid":"one"}') + "." + encode(json.dumps(CLAIMS).encode())
        return f"{signed}.{encode(hmac.new(secret, signed.encode(), hashlib.sha256).digest())}"

    def forged(self) -> dict[str, str]:
        public = self.issuer_key.public_key()
        info = serialization.PublicFormat.SubjectPublicKeyInfo
        pem = public.public_bytes(serialization.Encoding.PEM, info)
        der = public.public_bytes(serialization.Encoding.DER, info)
        unsigned = encode(b'{"alg":"none"}') + "." + encode(json.dumps(CLAIMS).encode())
        elsewhere = "https://127.0.0.1:9/keys"
        return {
            "none": unsigned + ".",
            "none, with a signature": unsigned + ".AAAA",
            "HS256 of the PEM": self.confused(pem),
            "HS256 of the DER": self.confused(der),
            "HS256 of the JWK": self.confused(json.dumps(self.key_set["keys"][0]).encode()),
            "HS256 of nothing": self.confused(b""),
            "our key id, their key": self.own(),
            "jwk": self.own(jwk=jwk_of(self.own_key, "one")),
            "jku": self.own(jku=elsewhere),
            "x5u": self.own(x5u=elsewhere),
            "x5c": self.own(x5c=["MIIB"]),
            "crit": self.good(crit=["exp"], exp=1),
            "b64": self.good(b64=True),
            "another type": self.good(typ="dpop+jwt"),
            "padded": self.good() + "=",
            "four parts": self.good() + ".AAAA",
            "a key id of 1,000 characters": self.good(kid="k" * 1000),
            "a key id that is a path": self.good(kid="../../dev/null"),
            "a key id that is a query": self.good(kid="one' OR '1'='1"),
            "a key id that is a list": self.good(kid=["one"]),
            "audience last": self.good(self.twice("aud", "headrace", "other")),
            "expired last": self.good(self.twice("exp", CLAIMS["exp"], 1)),
            "expires never": self.good(self.twice("exp", CLAIMS["exp"], 1e308)),
            "expires as text": self.good(self.twice("exp", CLAIMS["exp"], "4102444800")),
            "not a number": self.good(b'{"exp": NaN}'),
            "deep": self.good(b"[" * 2000 + b"]" * 2000),
            "20,000 digits": self.good(b'{"exp": ' + b"9" * 5000 + b"}"),
        }

    def twice(self, name: str, first: object, last: object) -> bytes:
        """The claims with `name` given twice."""
        others = {key: value for key, value in CLAIMS.items() if key != name}
        pairs = [(name, first), *others.items(), (name, last)]
        return b"{%b}" % b",".join(
            b"%b:%b" % (json.dumps(key).encode(), json.dumps(value).encode())
            for key, value in pairs
        )


async def test_no_forged_token_passes(replica: FakeReplica, tmp_path: Path) -> None:
    hostile, log = Hostile(), tmp_path / "access.jsonl"
    (tmp_path / "jwks.json").write_text(json.dumps(hostile.key_set))
    issuer = {"issuer": ISSUER, "audiences": ["headrace"], "jwks": {"file": "jwks.json"}}
    auth = {"issuers": [issuer], "throttle": {"failures_per_minute": None}}
    document = base_config([replica.url], auth=auth, log={"access": str(log)})
    forged = hostile.forged()
    async with InProcess(document, tmp_path) as gateway:
        assert (await models(gateway, authorization=f"Bearer {hostile.good()}")).status == 200
        # Given twice, the last one counts (RFC 7519 section 4); the issuer signed that.
        twice = hostile.good(hostile.twice("aud", "other", "headrace"))
        assert (await models(gateway, x_api_key=twice)).status == 200
        bodies = set()
        for name, token in forged.items():
            for header in ("authorization", "x_api_key"):
                value = token if header == "x_api_key" else f"Bearer {token}"
                answer = await models(gateway, **{header: value})
                assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer"), name
                bodies.add(answer.json()["error"]["message"])
        assert len(bodies) == 1
        for size in (9_000, 60_000):
            large = hostile.good(json.dumps(CLAIMS | {"pad": "x" * (size * 3 // 4)}).encode())
            assert (await models(gateway, authorization=f"Bearer {large}")).status in (401, 431)
        assert (await models(gateway, authorization="Bearer " + "x" * 1_000_000)).status == 431
        # Keys that nobody has, one after the other: a file is asked no more often than a URL.
        for number in range(200):
            token = hostile.good(kid=f"unknown-{number}")
            assert (await models(gateway, authorization=f"Bearer {token}")).status == 401
        assert gateway.metric("headrace_jwks_fetch_total", ISSUER, "ok") <= 4
        assert (await models(gateway, authorization=f"Bearer {hostile.good()}")).status == 200
    written = log.read_text()
    for token in forged.values():
        assert token.rpartition(".")[2] == "" or token not in written
    statuses = {json.loads(line)["status"] for line in written.splitlines()}
    assert statuses == {200, 401, 431}


async def test_rules_hold_at_each_route(replica: FakeReplica, tmp_path: Path) -> None:
    free, paid = Key(id="free", tier="free"), Key(id="paid", tier="paid")
    auth = {
        "api_keys": {"keys": [free.entry, paid.entry]},
        "rules": [{"models": ["demo"], "routes": ["/v1/chat/completions"], "tiers": ["paid"]}],
    }
    async with InProcess(base_config([replica.url], auth=auth), tmp_path) as gateway:

        async def tried(key: Key) -> list[int]:
            headers = {"x-api-key": key.text}
            chatted = await ask(gateway.port, chat(max_tokens=1), headers=headers)
            prompt = {"model": "demo", "prompt": "hello", "max_tokens": 1}
            path = "/v1/completions"
            completed = await ask(gateway.port, prompt, path=path, headers=headers)
            return [chatted.status, completed.status]

        assert await tried(paid) == [200, 200]
        assert await tried(free) == [403, 200]


async def test_a_revoked_credential_is_refused_within_a_second(
    replica: FakeReplica, tmp_path: Path, valkey: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = Key(id="first"), Key(id="second")
    document = base_config(
        [replica.url],
        auth={
            "api_keys": {"keys": [first.entry, second.entry]},
            "revocations": {"redis": True},
            "cache_dir": str(tmp_path / "kept"),
        },
        limits={"store": {"redis": {"url": valkey.url}}},
    )
    path = str(tmp_path / "headrace.yaml")

    async def run(*arguments: str) -> int:
        return await asyncio.to_thread(main, ["revoke", *arguments, "-c", path])

    async with InProcess(document, tmp_path) as gateway:

        def status_is(key: Key, expected: int) -> Callable[[], Awaitable[bool]]:
            async def look() -> bool:
                return (await models(gateway, x_api_key=key.text)).status == expected

            return look

        assert await status_is(first, 200)()
        assert await run("key:first") == 0
        revoked_at = time.monotonic()
        await eventually(status_is(first, 401))
        assert time.monotonic() - revoked_at < 3  # half a second, on a machine with nothing to do
        assert await status_is(second, 200)()
        assert await run("key:second", "--days", "1") == 0
        await eventually(status_is(second, 401))
        assert await run("key:second", "--undo") == 0
        await eventually(status_is(second, 200))
        assert await run("first") == 2
    valkey.stop()
    async with InProcess(document, tmp_path) as gateway:  # without the list: by the copy
        assert (await models(gateway, x_api_key=first.text)).status == 401
        assert (await models(gateway, x_api_key=second.text)).status == 200
        assert await run("key:second") == 1
    assert "revoked for 365 days" in capsys.readouterr().out


async def test_a_certificate_says_who_is_there(replica: FakeReplica, tmp_path: Path) -> None:
    servers, clients = Authority(tmp_path), Authority(tmp_path, name="clients")
    own = servers.issue("localhost")
    log = tmp_path / "access.jsonl"
    auth = {"client_certificates": [{"uri": "spiffe://acme.example/*", "tenant": "acme"}]}
    document = base_config([replica.url], auth=auth, log={"access": str(log)})
    document["listen"]["tls"] = {
        "certificate": str(own.certificate),
        "key": str(own.key),
        "client_certificates": {"ca": str(clients.path), "mode": "optional"},
    }
    known = clients.issue(uris=["spiffe://acme.example/agent"])
    unknown = clients.issue(uris=["spiffe://other.example/agent"])
    shown = [known.present(servers.client_context()), unknown.present(servers.client_context())]
    async with InProcess(document, tmp_path) as gateway:
        for context, expected in (
            (shown[0], 200),
            (shown[1], 401),
            (servers.client_context(), 401),
        ):
            reply = await asyncio.to_thread(get, gateway.port, context, path="/v1/models")
            assert reply.status == expected
    first = json.loads(log.read_text().splitlines()[0])
    assert (first["tenant"], first["subject"]) == ("acme", "spiffe://acme.example/agent")
