from __future__ import annotations

import pytest

from backend.framing import Refused, body_is_sized, check_head


def test_final_and_interim() -> None:
    assert [check_head(status, "1.1") for status in (100, 103, 200, 599)] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("status", "version"), [(0, "1.1"), (99, "1.1"), (600, "1.1"), (101, "1.1"), (200, "2.0")]
)
def test_refused_heads(status: int, version: str) -> None:
    with pytest.raises(Refused):
        check_head(status, version)


def test_where_the_body_ends() -> None:
    assert not body_is_sized([(b"server", b"x")], "1.1")
    assert body_is_sized([(b"content-length", b"0")], "1.0")
    assert body_is_sized([(b"transfer-encoding", b"Chunked")], "1.1")


@pytest.mark.parametrize("coding", [b"gzip", b"gzip, chunked", b"chunked, chunked", b""])
def test_refused_codings(coding: bytes) -> None:
    with pytest.raises(Refused):
        body_is_sized([(b"transfer-encoding", coding)], "1.1")
