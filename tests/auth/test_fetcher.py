from __future__ import annotations

from pathlib import Path

import pytest

from auth.fetcher import FetchFailed, FileFetcher
from auth.keyset import MAX_DOCUMENT_BYTES


async def test_a_file_is_read_anew_each_time(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    fetcher = FileFetcher(str(path))
    for content in (b"one", b"two", b"x" * MAX_DOCUMENT_BYTES):
        path.write_bytes(content)
        assert await fetcher.fetch() == content


async def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FetchFailed) as caught:
        await FileFetcher(str(tmp_path / "none.json")).fetch()
    assert caught.value.result == "unreachable"


async def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(b"x" * (MAX_DOCUMENT_BYTES + 1))
    with pytest.raises(FetchFailed) as caught:
        await FileFetcher(str(path)).fetch()
    assert caught.value.result == "too_large"
