"""Asks a replica one question on a connection of its own, in the protocol of its requests.

A probe on a kept connection would not notice that the listener is gone. Neither redirects nor
cookies nor proxies from the environment are followed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from backend.dial import REFUSED
from backend.dialer import Dialer
from backend.engines.dialect import is_2xx
from backend.health import Probe
from backend.http1_client import Connection
from backend.http1_protocol import Http1Protocol
from backend.http2_protocol import Http2Protocol
from backend.http2_stream import Http2Stream
from core.errors import GatewayError, Unavailable, UpstreamError, UpstreamTimeout
from core.exchange import Header

_JSON = ((b"content-type", b"application/json"),)


class _Alone:
    """Owns connections that serve once."""

    def released(self, protocol: Http1Protocol) -> None:
        protocol.abort()

    def changed(self, protocol: Http2Protocol) -> None: ...

    def lost(self, protocol: Http1Protocol | Http2Protocol) -> None: ...


class _Answer:
    """Reads a response up to `max_bytes` of its body."""

    def __init__(self, max_bytes: int) -> None:
        self.status = 0
        self.body = bytearray()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._max_bytes = max_bytes

    @property
    def progress(self) -> int:
        return self.status + len(self.body)

    def on_head(self, status: int, headers: list[Header]) -> None:
        self.status = status
        self.on_body(b"")

    def on_body(self, data: bytes) -> None:
        self.body += data[: self._max_bytes - len(self.body)]
        if len(self.body) >= self._max_bytes:
            self.on_end()

    def on_end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def on_failed(self, error: UpstreamError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class Asker:
    """An HTTP client for one replica."""

    def __init__(self, dialer: Dialer) -> None:
        self.id = dialer.id
        self._dialer = dialer

    def __repr__(self) -> str:
        return f"<Asker of {self.id}>"

    async def probe(
        self, path: str, timeout_s: float, healthy: Callable[[int], bool] = is_2xx
    ) -> Probe:
        """`healthy` judges the status of the answer."""
        try:
            status, _ = await self.get(path, timeout_s, max_bytes=0)
        except (TimeoutError, UpstreamTimeout):
            return Probe.SLOW
        except Unavailable:  # ours to mend: we are out of descriptors
            return Probe.SLOW
        except GatewayError as error:
            return Probe.REFUSED if error.reason == REFUSED else Probe.BAD
        return Probe.GOOD if healthy(status) else Probe.BAD

    async def fetch(self, path: str, timeout_s: float, max_bytes: int) -> bytes | None:
        """The body of a good answer, cut at `max_bytes`; None when there is none to be had."""
        try:
            status, body = await self.get(path, timeout_s, max_bytes)
        except (GatewayError, TimeoutError):
            return None
        return body if status == 200 else None

    async def get(self, path: str, timeout_s: float, max_bytes: int) -> tuple[int, bytes]:
        """Status and body; a longer body is cut, which the reader takes for what it is: less.

        Raises GatewayError or TimeoutError.
        """
        return await self._ask(b"GET", path, b"", timeout_s, max_bytes)

    async def post(
        self, path: str, body: bytes, timeout_s: float, max_bytes: int
    ) -> tuple[int, bytes]:
        """As `get`, of JSON that is sent."""
        return await self._ask(b"POST", path, body, timeout_s, max_bytes)

    async def _ask(
        self, method: bytes, path: str, body: bytes, timeout_s: float, max_bytes: int
    ) -> tuple[int, bytes]:
        alone, answer = _Alone(), _Answer(max_bytes)
        async with asyncio.timeout(timeout_s):
            made = await self._dialer.open(alone, alone)
            hold: Connection | Http2Stream
            if isinstance(made, Http1Protocol):
                hold = Connection(made, self.id)
            else:
                hold = made.take(self.id)
            try:
                hold.send(method, path.encode(), _JSON if body else (), body, answer)
                await answer.done
            finally:
                hold.abort()  # over HTTP/1.1 that is the whole connection
                if isinstance(made, Http2Protocol):
                    made.leave()
        return answer.status, bytes(answer.body)
