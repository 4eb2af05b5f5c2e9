"""The bytes of an issuer's JWKS document, from its URL or from a file. Performs.

The URL is the operator's own, and all the same its answer is hostile input: no redirects, no
proxies from the environment, no cookies, no decompression, bounded in size and in time.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Literal, Protocol

import aiohttp

from auth.config import JwksConfig
from auth.discovery import DiscoveryError, key_set_url, metadata_url
from auth.keyset import MAX_DOCUMENT_BYTES
from core.clock import Clock
from core.errors import ConfigError

FetchResult = Literal["ok", "unreachable", "timeout", "status", "too_large", "unusable", "error"]

METADATA_S = 3600.0
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
        self.timeout_s = config.timeout_s
        self._timeout = aiohttp.ClientTimeout(total=config.timeout_s)
        try:
            self._tls = ssl.create_default_context(cafile=config.ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"cannot use {config.ca} as authorities for a JWKS URL") from error

    def __repr__(self) -> str:
        return f"UrlFetcher({self._url!r})"

    async def fetch(self) -> bytes:
        return await self.get(self._url)

    async def get(self, url: str) -> bytes:
        """As `fetch`, from any URL."""
        try:
            return await self._get(url)
        except TimeoutError as error:
            raise FetchFailed("timeout", "no complete answer in time") from error
        except aiohttp.ClientConnectionError as error:
            raise FetchFailed("unreachable", f"no connection ({type(error).__name__})") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise FetchFailed("error", f"no usable answer ({type(error).__name__})") from error

    async def _get(self, url: str) -> bytes:
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._tls, limit=1, force_close=True),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=self._timeout,
                headers=_HEADERS,
                trust_env=False,
                auto_decompress=False,
            ) as session,
            session.get(url, allow_redirects=False) as response,
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


class DiscoveryFetcher:
    """Fetches from where the issuer's metadata say, which are looked at once an hour, and whenever
    the fetch before has failed. While they cannot be had, the URL that they named last is used."""

    def __init__(
        self, issuer: str, config: JwksConfig, http: UrlFetcher, clock: Clock = time.monotonic
    ) -> None:
        self._issuer = issuer
        self._allow_http = config.allow_http
        self._http = http
        self._clock = clock
        self._url: str | None = None
        self._look_at = 0.0

    def __repr__(self) -> str:
        return f"DiscoveryFetcher({self._issuer!r}, {self._url!r})"

    async def fetch(self) -> bytes:
        try:
            async with asyncio.timeout(self._http.timeout_s):
                url = await self._find()
                self._look_at, found_at = 0.0, self._look_at
                document = await self._http.get(url)
                self._look_at = found_at
                return document
        except TimeoutError as error:
            raise FetchFailed("timeout", "no complete answer in time") from error

    async def _find(self) -> str:
        now = self._clock()
        if self._url is not None and now < self._look_at:
            return self._url
        try:
            metadata = await self._http.get(metadata_url(self._issuer))
            self._url = key_set_url(metadata, self._issuer, self._allow_http)
        except (FetchFailed, DiscoveryError) as error:
            if self._url is None:
                raise FetchFailed(getattr(error, "result", "unusable"), str(error)) from error
            return self._url
        self._look_at = now + METADATA_S
        return self._url


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
