from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from core.errors import ConfigError
from core.identity import file_identity, identity
from core.section import FilePath, OutputPath, Secret, Section


class Item(Section):
    name: str = "x"
    path: FilePath | None = None
    out: OutputPath | None = None
    secret: Secret | None = None


class Whole(Section):
    items: tuple[Item, ...] = ()
    words: dict[str, int] = msgspec.field(default_factory=dict)


def test_equal_settings_have_equal_identities() -> None:
    def made() -> Whole:
        return Whole(items=(Item(name="a"), Item()), words={"a": 1})

    assert identity(made()) == identity(made())
    assert hash(identity(made())) == hash(identity(made()))
    assert identity(made()) != identity(Whole(items=(Item(name="b"), Item()), words={"a": 1}))
    assert identity(made()) != identity(Whole(items=(Item(name="a"), Item()), words={"a": 2}))


def test_a_file_that_was_written_anew_or_replaced_is_a_change(tmp_path: Path) -> None:
    path = tmp_path / "file"
    item = Item(path=FilePath(str(path)))
    missing = identity(item)
    path.write_text("1")
    first = identity(item)
    assert first != missing
    assert identity(item) == first
    os.utime(path, ns=(1, 1))
    second = identity(item)
    assert second != first
    other = tmp_path / "other"
    other.write_text("1")
    os.utime(other, ns=(1, 1))
    os.replace(other, path)
    assert identity(item) != second


def test_a_link_that_points_elsewhere_is_a_change(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("same")
        os.utime(tmp_path / name, ns=(1, 1))
    link = tmp_path / "link"
    link.symlink_to("a")
    before = file_identity(str(link))
    link.unlink()
    link.symlink_to("b")
    assert file_identity(str(link)) != before


def test_what_is_written_to_is_known_by_its_path(tmp_path: Path) -> None:
    item = Item(out=OutputPath(str(tmp_path / "log")))
    before = identity(item)
    (tmp_path / "log").write_text("a line")
    assert identity(item) == before


def test_a_secret_counts_by_what_it_holds_and_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    item = Item(secret=Secret("env:KEY"))
    monkeypatch.setenv("KEY", "sesame")
    before = identity(item)
    assert "sesame" not in repr(before)
    assert identity(item) == before
    monkeypatch.setenv("KEY", "poppy")
    assert identity(item) != before
    monkeypatch.delenv("KEY")
    with pytest.raises(ConfigError, match="KEY"):
        identity(item)
