"""Files and secrets that the configuration points at."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.section import FilePath, OutputPath, Secret, Section
from proxy.config import AccessTarget, LogConfig, UsageConfig, UsageFile
from proxy.serve.references import missing_references, referenced_files


class Inner(Section):
    key: Secret | None = None


class Outer(Section):
    path: FilePath
    log: OutputPath
    inner: tuple[Inner, ...] = ()
    by_name: dict[str, FilePath] = {}  # noqa: RUF012 - msgspec copies it


def test_everything_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_TEST_KEY", raising=False)
    section = Outer(
        path=FilePath("/nowhere/a"),
        log=OutputPath("/nowhere/log"),
        inner=(Inner(), Inner(key=Secret("env:HEADRACE_TEST_KEY"))),
        by_name={"x": FilePath("/nowhere/b"), "here": FilePath(tmp_path)},
    )
    assert list(missing_references(section)) == [
        "$.path: there is no file /nowhere/a",
        "$.inner[1].key: the environment variable HEADRACE_TEST_KEY, meant as a secret, is not set",
        "$.by_name.x: there is no file /nowhere/b",
    ]


def test_nothing_is_missing(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("x\n")
    section = Outer(
        path=FilePath(tmp_path / "key"),
        log=OutputPath("/nowhere/log"),
        inner=(Inner(key=Secret(f"file:{tmp_path / 'key'}")),),
    )
    assert list(missing_references(section)) == []


def test_what_is_read_for_a_configuration(tmp_path: Path) -> None:
    section = Outer(
        path=FilePath("/a"),
        log=OutputPath("/log"),
        inner=(
            Inner(key=Secret("env:NAME")),
            Inner(key=Secret.from_text("file:b", str(tmp_path))),
        ),
        by_name={"x": FilePath("/c")},
    )
    found = list(referenced_files(section))
    assert found == ["/a", str(tmp_path / "b"), "/c"]
    assert {type(path) for path in found} == {str}


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    section = Outer(path=FilePath(tmp_path), log=OutputPath("/x"))
    assert list(missing_references(section)) == [
        f"$.path: the file {tmp_path} may not be read by this user"
    ]


def test_the_access_log_must_have_a_folder_to_be_in(tmp_path: Path) -> None:
    def faults(target: object) -> list[str]:
        return list(missing_references(LogConfig(access=AccessTarget(target))))

    assert faults(tmp_path / "no" / "log") == [f"$.access: there is no folder {tmp_path / 'no'}"]
    assert faults(tmp_path) == [f"$.access: {tmp_path} is a folder"]
    assert faults(tmp_path / "log") == faults("stdout") == faults("off") == []


def test_the_usage_file_must_have_a_folder_to_be_in(tmp_path: Path) -> None:
    section = UsageConfig(file=UsageFile(tmp_path / "no" / "usage"))
    assert list(missing_references(section)) == [f"$.file: there is no folder {tmp_path / 'no'}"]
    there = UsageConfig(file=UsageFile(tmp_path / "usage"))
    assert list(missing_references(there)) == []
    assert list(referenced_files(there)) == []
