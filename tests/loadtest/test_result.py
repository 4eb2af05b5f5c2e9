"""A result survives its file, and another file is refused in words."""

from __future__ import annotations

from pathlib import Path

import pytest
from load_samples import many, result

from loadtest.result import ResultError, decode, encode, read


def test_there_and_back() -> None:
    found = result(many())
    assert decode(encode(found), "r.json") == found


def test_a_folder_stands_for_the_file_in_it(tmp_path: Path) -> None:
    found = result(many())
    (tmp_path / "result.json").write_bytes(encode(found))
    assert read(tmp_path) == read(tmp_path / "result.json") == found


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"/result\.json: No such file or directory$"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{}", "r.json: not the result of a run: .*missing"),
        (b"[", "r.json: not the result of a run"),
    ],
)
def test_what_is_none(data: bytes, said: str) -> None:
    with pytest.raises(ResultError, match=said):
        decode(data, "r.json")


def test_another_format() -> None:
    data = encode(result(many())).replace(b'"format": 1', b'"format": 7')
    with pytest.raises(ResultError, match="format 7, this version reads 1"):
        decode(data, "r.json")
