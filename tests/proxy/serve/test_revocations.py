from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from auth.revocation_watch import Listed, ListUnavailable
from proxy.serve.__main__ import main
from proxy.serve.revocations import SharedRevocations
from ratelimit.config import RedisConfig
from ratelimit.redis_inspect import CannotAsk
from ratelimit.redis_names import RedisNames

HASH = "0" * 64
DOCUMENT: dict[str, Any] = {
    "listen": {"addresses": ["127.0.0.1:0"], "tls": "off"},
    "auth": {"api_keys": {"keys": [{"id": "k", "sha256": HASH, "tenant": "a"}]}},
    "models": [{"name": "m"}],
    "replicas": [{"url": "http://127.0.0.1:1", "model": "m"}],
}


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = tmp_path / "headrace.yaml"
    path.write_text(yaml.safe_dump(DOCUMENT))
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["k"], "NAME: expected `key:ID`"),
        (["key:k", "--days", "0"], "--days: expected more than 0"),
        (["key:k"], "$.auth.revocations.redis: gateways follow no shared list"),
    ],
)
def test_what_cannot_be_revoked(
    path: str, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["revoke", *arguments, "-c", path]) == 2
    assert words in capsys.readouterr().err


class KeptNames:
    """Of the list in the store, in memory."""

    added: ClassVar[list[str]] = []

    def __init__(self, config: RedisConfig, name: str) -> None: ...

    def add(self, name: str, seconds: float) -> None:
        self.added.append(name)

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("name", "warning"),
    [
        ("key:acme-1", ""),
        (
            "key:acme-l",
            "headrace: no API key of this configuration is named `acme-l`; "
            "did you mean `acme-1`?\n",
        ),
        ("jti:acme-l", ""),
    ],
)
def test_a_key_that_is_not_there_is_revoked_with_a_warning(
    name: str,
    warning: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("proxy.serve.revocations.RedisNames", KeptNames)
    key = {"id": "acme-1", "sha256": HASH, "tenant": "a"}
    path = tmp_path / "headrace.yaml"
    auth = {"api_keys": {"keys": [key]}, "revocations": {"redis": True}}
    store = {"redis": {"url": "redis://127.0.0.1:6379/0"}}
    path.write_text(yaml.safe_dump({**DOCUMENT, "auth": auth, "limits": {"store": store}}))
    KeptNames.added.clear()
    assert main(["revoke", name, "-c", str(path)]) == 0
    said = capsys.readouterr()
    assert said.err == warning
    assert said.out.startswith(f"OK: {name}: revoked")
    assert KeptNames.added == [name]


def test_the_list_in_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_: RedisNames, version: int | None) -> tuple[int, frozenset[str]] | None:
        if version == 2:
            raise CannotAsk("TimeoutError: no answer")
        return None if version == 1 else (1, frozenset({"key:a"}))

    monkeypatch.setattr(RedisNames, "read", read)
    shared = SharedRevocations(RedisConfig(url="redis://127.0.0.1:6379/0"))
    assert shared.read(None) == Listed(1, frozenset({"key:a"}))
    assert shared.read(1) is None
    with pytest.raises(ListUnavailable, match="no answer"):
        shared.read(2)
