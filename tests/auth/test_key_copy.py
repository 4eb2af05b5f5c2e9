from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from auth.key_copy import MAX_FUTURE_S, Copy, KeyCopy

NOW = 1_700_000_000.0
DOCUMENT = '{"keys": ["é"]}'.encode()


@pytest.fixture
def copy(tmp_path: Path) -> KeyCopy:
    return KeyCopy(str(tmp_path / "keys"), "https://id.example")


def path_of(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "keys").iterdir()
    return path


def test_what_was_written_is_read(copy: KeyCopy) -> None:
    assert copy.read(NOW) is None
    copy.write(b"{}", NOW - 100)
    copy.write(DOCUMENT, NOW - 10)
    assert copy.read(NOW) == Copy(DOCUMENT, 10)


def test_nobody_else_can_read_or_write_it(copy: KeyCopy, tmp_path: Path) -> None:
    copy.write(DOCUMENT, NOW)
    assert stat.S_IMODE(path_of(tmp_path).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_what_others_may_write_is_not_trusted(copy: KeyCopy, tmp_path: Path, mode: int) -> None:
    copy.write(DOCUMENT, NOW)
    path_of(tmp_path).chmod(mode)
    with pytest.raises(PermissionError):
        copy.read(NOW)


def test_what_somebody_else_owns_is_not_trusted(
    copy: KeyCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy.write(DOCUMENT, NOW)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(PermissionError):
        copy.read(NOW)


def test_a_link_is_not_followed(copy: KeyCopy, tmp_path: Path) -> None:
    copy.write(DOCUMENT, NOW)
    path = path_of(tmp_path)
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    with pytest.raises(OSError, match="symbolic links"):
        copy.read(NOW)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"fetched_at": "x", "document": ""}'])
def test_what_is_no_copy_is_none(copy: KeyCopy, tmp_path: Path, content: bytes) -> None:
    copy.write(DOCUMENT, NOW)
    path_of(tmp_path).write_bytes(content)
    assert copy.read(NOW) is None


def test_a_copy_from_the_future_has_no_age(copy: KeyCopy) -> None:
    copy.write(DOCUMENT, NOW + MAX_FUTURE_S)
    assert copy.read(NOW) == Copy(DOCUMENT, 0)
    assert copy.read(NOW - 1) is None


def test_each_set_has_its_own_file(copy: KeyCopy, tmp_path: Path) -> None:
    copy.write(DOCUMENT, NOW)
    assert KeyCopy(str(tmp_path / "keys"), "https://other.example").read(NOW) is None


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    copy = KeyCopy(str(tmp_path / "file"), "a")
    with pytest.raises(OSError, match="file"):
        copy.write(DOCUMENT, NOW)


def test_what_is_no_text_is_not_written(copy: KeyCopy) -> None:
    with pytest.raises(ValueError, match="utf-8"):
        copy.write(b"\xff", NOW)
    assert copy.read(NOW) is None
