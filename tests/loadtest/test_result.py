"""A result survives its file, and another file is refused in words."""

from __future__ import annotations

import pytest
from load_samples import many, result

from loadtest.result import ResultError, decode, encode


def test_there_and_back() -> None:
    found = result(many())
    assert decode(encode(found), "r.json") == found


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
