from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from auth.config import JwksConfig
from auth.fetcher import METADATA_S, DiscoveryFetcher, FetchFailed, FileFetcher
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


ISSUER = "https://id.example"
METADATA_URL = f"{ISSUER}/.well-known/openid-configuration"
KEYS_URL = "https://keys.example/1"


class Web:
    """What is at each URL: bytes, or a failure. `asked` for so far."""

    timeout_s = 5.0

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.pages: dict[str, Any] = {KEYS_URL: b"keys"}
        self.point(KEYS_URL)

    def point(self, url: str, issuer: str = ISSUER) -> None:
        self.pages[METADATA_URL] = orjson.dumps({"issuer": issuer, "jwks_uri": url})

    async def get(self, url: str) -> bytes:
        self.asked.append(url)
        page = self.pages.get(url, FetchFailed("status", "status 404"))
        if isinstance(page, FetchFailed):
            raise page
        found: bytes = page
        return found

    def asked_lately(self) -> list[str]:
        asked, self.asked = self.asked, []
        return asked


@pytest.fixture
def web() -> Web:
    return Web()


@pytest.fixture
def discovery(web: Any, clock: Any) -> DiscoveryFetcher:
    return DiscoveryFetcher(ISSUER, JwksConfig(), web, clock)


async def test_metadata_are_looked_at_once_an_hour(
    discovery: DiscoveryFetcher, web: Web, clock: Any
) -> None:
    for _ in range(3):
        assert await discovery.fetch() == b"keys"
    assert web.asked_lately() == [METADATA_URL, KEYS_URL, KEYS_URL, KEYS_URL]
    clock.now += METADATA_S
    await discovery.fetch()
    assert web.asked_lately() == [METADATA_URL, KEYS_URL]


async def test_a_key_set_that_has_moved_is_found(discovery: DiscoveryFetcher, web: Web) -> None:
    await discovery.fetch()
    web.pages["https://keys.example/2"] = b"moved"
    web.point("https://keys.example/2")
    del web.pages[KEYS_URL]
    with pytest.raises(FetchFailed):
        await discovery.fetch()
    assert await discovery.fetch() == b"moved"


@pytest.mark.parametrize("fault", ["gone", "another issuer", "no URL"])
async def test_without_metadata_the_last_ones_hold(
    discovery: DiscoveryFetcher, web: Web, clock: Any, fault: str
) -> None:
    await discovery.fetch()
    if fault == "gone":
        del web.pages[METADATA_URL]
    else:
        evil = "https://evil.example/"
        web.point(*((evil, evil) if fault == "another issuer" else ("file:///etc/passwd",)))
    clock.now += METADATA_S
    web.asked_lately()
    assert [await discovery.fetch() for _ in range(2)] == [b"keys"] * 2
    assert web.asked_lately() == [METADATA_URL, KEYS_URL] * 2


async def test_without_metadata_from_the_start_there_is_no_key_set(
    discovery: DiscoveryFetcher, web: Web
) -> None:
    web.point(KEYS_URL, "https://other.example")
    with pytest.raises(FetchFailed) as caught:
        await discovery.fetch()
    assert caught.value.result == "unusable"
    del web.pages[METADATA_URL]
    with pytest.raises(FetchFailed) as caught:
        await discovery.fetch()
    assert caught.value.result == "status"
    assert KEYS_URL not in web.asked
