"""Value types of the configuration: references to secrets, and paths."""

from __future__ import annotations

import os

import pytest

from core.errors import ConfigError
from core.section import SHORTEST_SECRET, Contradictions, FilePath, OutputPath, Secret, Section


def test_a_secret_of_the_environment_is_revealed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_TEST_KEY", "s3cr3t")
    assert Secret("env:HEADRACE_TEST_KEY").reveal() == "s3cr3t"


@pytest.mark.parametrize(
    ("written", "revealed"),
    [("key\n", "key"), ("key\r\n", "key"), ("key\n\n", "key\n"), (" key ", " key ")],
)
def test_one_trailing_newline_of_a_secret_file_is_dropped(
    tmp_path: os.PathLike[str], written: str, revealed: str
) -> None:
    path = os.path.join(tmp_path, "key")
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(written)
    assert Secret(f"file:{path}").reveal() == revealed


def test_a_rotated_secret_file_is_seen(tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "key")
    secret = Secret(f"file:{path}")
    for text in ("old", "new"):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        assert secret.reveal() == text


@pytest.mark.parametrize("reference", ["sk-verysecret", "env:", "file:", "", "vault:x"])
def test_what_is_no_reference_is_refused_without_being_repeated(reference: str) -> None:
    with pytest.raises(ValueError, match="env:NAME") as caught:
        Secret(reference)
    assert "verysecret" not in str(caught.value)


def test_a_secret_that_cannot_be_had_names_its_place(
    tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_TEST_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"HEADRACE_TEST_KEY.* is not set"):
        Secret("env:HEADRACE_TEST_KEY").reveal()
    monkeypatch.setenv("HEADRACE_TEST_KEY", "")
    with pytest.raises(ConfigError, match="is empty"):
        Secret("env:HEADRACE_TEST_KEY").reveal()
    path = os.path.join(tmp_path, "key")
    with pytest.raises(ConfigError, match=f"{path}: No such file"):
        Secret(f"file:{path}").reveal()
    for content, fault in ((b"", "is empty"), (b"\xff", "not UTF-8")):
        with open(path, "wb") as file:
            file.write(content)
        with pytest.raises(ConfigError, match=fault):
            Secret(f"file:{path}").reveal()


def test_nothing_shows_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_TEST_KEY", "s3cr3t")
    secret = Secret("env:HEADRACE_TEST_KEY")
    assert "s3cr3t" not in f"{secret!r} {secret}"
    assert secret == Secret("env:HEADRACE_TEST_KEY") != Secret("env:OTHER")
    assert len({secret, Secret("env:HEADRACE_TEST_KEY")}) == 1


def test_relative_paths_start_at_the_base() -> None:
    assert FilePath.from_text("tls/../cert.pem", "/etc/headrace") == "/etc/headrace/cert.pem"
    assert FilePath.from_text("/abs/cert.pem", "/etc/headrace") == "/abs/cert.pem"
    assert type(OutputPath.from_text("log", "/var")) is OutputPath
    assert repr(Secret.from_text("file:key", "/etc")) == "Secret('file:/etc/key')"
    assert Secret.from_text("env:KEY", "/etc") == Secret("env:KEY")
    for text in ("", "a\0b"):
        with pytest.raises(ValueError, match="expected a path"):
            FilePath.from_text(text, "/etc")


def test_sections_are_frozen() -> None:
    class Place(Section):
        port: int

    with pytest.raises(AttributeError):
        Place(port=1).port = 2  # type: ignore[misc]


def test_contradictions_read_as_one_text() -> None:
    assert str(Contradictions([(".a", "is odd"), (".b", "too")])) == ".a: is odd; .b: too"


def test_keys_are_derived_from_no_secret_that_could_be_guessed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADRACE_TEST_KEY", "x" * SHORTEST_SECRET)
    assert Secret("env:HEADRACE_TEST_KEY").reveal_strong() == "x" * SHORTEST_SECRET
    monkeypatch.setenv("HEADRACE_TEST_KEY", "x" * (SHORTEST_SECRET - 1))
    with pytest.raises(ConfigError, match="has 31 characters; give at least 32 random ones"):
        Secret("env:HEADRACE_TEST_KEY").reveal_strong()
