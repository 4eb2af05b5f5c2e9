from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from auth.api_key import digest_of, make_key
from auth.fetcher import FetchFailed, UrlFetcher
from auth.key_copy import KeyCopy
from proxy.serve.__main__ import main
from proxy.serve.throwaway import Issuer

KEY = make_key(bytes(32))


class Inspector:
    """Runs the command over one configuration with every kind of credential."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], issuer: Issuer) -> None:
        self.issuer = issuer
        (folder / "jwks.json").write_bytes(self.issuer.key_set())
        self.key = {"id": "k", "sha256": digest_of(KEY.encode()).hex(), "tenant": "b", "tier": "x"}
        self.path = folder / "headrace.yaml"
        self._capsys = capsys
        self.document: dict[str, Any] = {
            "listen": {"addresses": ["127.0.0.1:0"], "tls": "off"},
            "auth": {
                "issuers": [
                    {
                        "issuer": "https://id.example",
                        "audiences": ["headrace"],
                        "jwks": {"file": "jwks.json"},
                        "claims": {"tenant": "tenant", "tier": "plan"},
                    }
                ],
                "api_keys": {"keys": [self.key]},
                "rules": [{"models": ["large"], "tiers": ["gold"]}],
            },
            "limits": {
                "rules": [
                    {"name": "requests", "limit": 600, "burst": 50},
                    {"name": "streams", "limit": 4, "unit": "concurrent", "per": ["user"]},
                    {"name": "x-only", "limit": 1, "match": {"tiers": ["x"]}, "shadow": True},
                ]
            },
            "models": [{"name": "small", "aliases": ["tiny"]}, {"name": "large"}],
            "replicas": [
                {"url": "http://127.0.0.1:1", "model": "small", "id": "a"},
                {"url": "http://127.0.0.1:1", "model": "large", "id": "b"},
            ],
        }

    def inspect(self, credential: str, *options: str) -> tuple[int, str]:
        self.path.write_text(yaml.safe_dump(self.document))
        status = main(["token", "inspect", credential, "-c", str(self.path), *options])
        return status, self._capsys.readouterr().out


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer("https://id.example", "headrace")


@pytest.fixture
def inspector(tmp_path: Path, capsys: pytest.CaptureFixture[str], issuer: Issuer) -> Inspector:
    return Inspector(tmp_path, capsys, issuer)


def test_a_good_token(inspector: Inspector) -> None:
    token = inspector.issuer.token("acme", plan="gold")
    status, said = inspector.inspect(token)
    assert status == 0
    lines = said.splitlines()
    header = next(line for line in lines if line.startswith("  header: "))
    assert json.loads(header.removeprefix("  header: "))["kid"] == "key-1"
    assert "  tenant: acme" in lines
    assert "  tier: gold" in lines
    assert "may use large at /v1/chat/completions; limits:" in lines
    assert "  requests: 600 requests per minute, up to 50 in a burst, for each tenant" in lines
    assert "  streams: 4 concurrent at once, for each user" in lines
    assert "x-only" not in said
    assert token.rpartition(".")[2] not in said


def test_an_api_key(inspector: Inspector) -> None:
    status, said = inspector.inspect(KEY)
    assert status == 0
    assert "  key: k\n" in said
    assert "may use small at" in said
    assert "model_not_allowed at /v1/completions: You may not use the model `large`" in said
    assert "x-only: 1 requests per minute, for each tenant (shadow: refuses nothing)" in said
    assert KEY not in said


def test_own_figures_are_shown(inspector: Inspector) -> None:
    inspector.key["limits"] = {"requests": {"limit": 7}}  # type: ignore[assignment]
    assert "requests: 7 requests per minute, for each tenant" in inspector.inspect(KEY)[1]


@pytest.mark.parametrize(("model", "expected"), [("tiny", 0), ("large", 1), ("none", 1)])
def test_one_model(inspector: Inspector, model: str, expected: int) -> None:
    status, said = inspector.inspect(KEY, "--model", model)
    assert status == expected
    assert {"tiny", "large", "none"} & set(said.replace("`", " ").split()) == {model}


def test_why_a_token_is_refused(inspector: Inspector) -> None:
    other = Issuer("https://id.example", "headrace").token("acme")
    for token, fault in (
        (other, "signature does not hold"),
        (inspector.issuer.token("acme", aud="x"), "not meant for us"),
        (inspector.issuer.token("acme", exp=1), "expired"),
        ("nonsense", "not three parts of base64url"),
        (KEY[:-1] + "_", "mistyped API key"),
        (make_key(b"1" * 32), "unknown API key"),
    ):
        status, said = inspector.inspect(token)
        assert (status, said.splitlines()[-1]) == (1, f"refused: {fault}")


def test_from_stdin(inspector: Inspector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"Bearer {KEY}\n"))
    assert inspector.inspect("-")[0] == 0


def test_key_sets_that_cannot_be_fetched(
    inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreachable(fetcher: UrlFetcher, url: str) -> bytes:
        raise FetchFailed("unreachable", "no connection")

    monkeypatch.setattr(UrlFetcher, "get", unreachable)
    issuer = inspector.document["auth"]["issuers"][0]
    issuer["jwks"] = {"url": "https://id.example/jwks.json"}
    status, said = inspector.inspect(inspector.issuer.token("acme"))
    assert (status, said.splitlines()[-1]) == (1, "cannot tell: no key set can be fetched.")
    # With what the gateway has kept on disk it can be told.
    folder = inspector.path.parent / "kept"
    inspector.document["auth"]["cache_dir"] = str(folder)
    copy = KeyCopy(str(folder), repr((issuer["issuer"], issuer["jwks"]["url"])))
    copy.write(inspector.issuer.key_set(), time.time() - 60)
    assert inspector.inspect(inspector.issuer.token("acme", plan="gold"))[0] == 0
    copy.write(inspector.issuer.key_set(), time.time() - 100_000)
    assert inspector.inspect(inspector.issuer.token("acme"))[0] == 1


def test_without_authentication(inspector: Inspector) -> None:
    inspector.document["auth"] = "none"
    status, said = inspector.inspect("anything")
    assert status == 0
    assert "accepts everybody" in said
