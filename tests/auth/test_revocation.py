from __future__ import annotations

from pathlib import Path

import pytest

from auth.revocation import MAX_REVOKED, is_name, names_of, read_file
from core.errors import ConfigError
from core.principal import Principal


def test_what_a_credential_may_be_revoked_by() -> None:
    assert names_of(Principal("acme", "bob", key="k")) == {"user:acme/bob", "key:k"}
    assert names_of(Principal("acme"), "7") == {"user:acme/", "jti:7"}
    assert names_of(Principal("acme"), 7) == {"user:acme/"}


@pytest.mark.parametrize("name", ["key:a", "jti:a:b", "user:acme/bob", "user:acme/"])
def test_names(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize(
    "name", ["", "key:", "key", "user:acme", "tenant:a", "key:a\n", "jti:" + "x" * 600]
)
def test_what_is_no_name(name: str) -> None:
    assert not is_name(name)


def test_a_file_of_names(tmp_path: Path) -> None:
    path = tmp_path / "revoked"
    path.write_text("# since Monday\nkey:a\n\n  jti:b  # lost laptop\n")
    assert read_file(str(path)) == {"key:a", "jti:b"}
    assert read_file(None) == frozenset()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("key:a\nkey=b\n", "revoked, line 2: expected `key:ID`"),
        ("\n".join(f"key:{n}" for n in range(MAX_REVOKED + 1)), "more than 10000"),
        ("\xff", "cannot read"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "revoked"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigError, match=words):
        read_file(str(path))
    with pytest.raises(ConfigError, match="cannot read"):
        read_file(str(tmp_path / "none"))
