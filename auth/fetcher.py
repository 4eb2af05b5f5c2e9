"""The bytes of an issuer's JWKS document, from its URL or from a file. Performs.

The URL is the operator's own, and all the same its answer is hostile input: no redirects, no
proxies from the environment, no cookies, no decompression, bounded in size and in time.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Literal, Protocol

import aiohttp

from auth.config import JwksConfig
from auth.keyset import MAX_DOCUMENT_BYTES
from core.errors import ConfigError

FetchResult = Literal["ok", "unreachable", "timeout", "status", "too_large", "unusable", "error"]

_HEADERS = {"accept": "application/json, application/jwk-set+json", "accept-encoding": "identity"}


class FetchFailed(Exception):
    """No document was had. `result` is its kind, for the metrics."""

    def __init__(self, result: FetchResult, message: str) -> None:
        super().__init__(message)
        self.result = result


class Fetcher(Protocol):
    async def fetch(self) -> bytes:
        """The document, at most MAX_DOCUMENT_BYTES. Raises FetchFailed."""


class UrlFetcher:
    """One GET on a connection of its own; a key set is asked for every few minutes at most.

    Raises ConfigError when the file of trusted authorities cannot be used.
    """

    def __init__(self, config: JwksConfig) -> None:
        self._url = config.url or ""
        self._timeout = aiohttp.ClientTimeout(total=config.timeout_s)
        try:
            self._tls = ssl.create_default_context(cafile=config.ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"cannot use {config.ca} as authorities for a JWKS URL") from error

    def __repr__(self) -> str:
        return f"UrlFetcher({self._url!r})"

    async def fetch(self) -> bytes:
        try:
            return await self._get()
        except TimeoutError as error:
            raise FetchFailed("timeout", "no complete answer in time") from error
        except aiohttp.ClientConnectionError as error:
            raise FetchFailed("unreachable", f"no connection ({type(error).__name__})") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise FetchFailed("error", f"no usable answer ({type(error).__name__})") from error

    async def _get(self) -> bytes:
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._tls, limit=1, force_close=True),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=self._timeout,
                headers=_HEADERS,
                trust_env=False,
                auto_decompress=False,
            ) as session,
            session.get(self._url, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise FetchFailed("status", f"status {response.status}")
            return await _read(response)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    document = bytearray()
    async for data in response.content.iter_any():
        document += data
        if len(document) > MAX_DOCUMENT_BYTES:
            response.close()
            raise FetchFailed("too_large", f"more than {MAX_DOCUMENT_BYTES} bytes")
    return bytes(document)


class FileFetcher:
    """Reads a file as if it were fetched, so that a changed one is seen."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __repr__(self) -> str:
        return f"FileFetcher({self._path!r})"

    async def fetch(self) -> bytes:
        return await asyncio.to_thread(self.read)

    def read(self) -> bytes:
        """As `fetch`, but at once."""
        try:
            with open(self._path, "rb") as file:
                document = file.read(MAX_DOCUMENT_BYTES + 1)
        except OSError as error:
            raise FetchFailed("unreachable", f"cannot read it: {error.strerror}") from error
        if len(document) > MAX_DOCUMENT_BYTES:
            raise FetchFailed("too_large", f"more than {MAX_DOCUMENT_BYTES} bytes")
        return document
