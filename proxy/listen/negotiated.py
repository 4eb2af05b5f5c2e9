"""Which protocol a new connection speaks: by ALPN, or without TLS by its first bytes.

An HTTP/2 client that was told of HTTP/2 beforehand begins with the preface (RFC 9113 section 3.3),
which no HTTP/1.1 request is.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from core.http2.engines import EngineName
from core.http2.frames import PREFACE
from proxy.http1.connection import Http1Connection
from proxy.http2.connection import Http2Connection

if TYPE_CHECKING:
    from proxy.listen.listener import Listener

_TELLING = 3
"""With fewer bytes of the preface HTTP/1.1 goes on, whose methods may begin with them too."""


class NegotiatedConnection(asyncio.Protocol):
    """Hands its transport over as soon as it knows to whom. Until the first bytes of a connection
    without TLS that is HTTP/1.1, with its deadline for them."""

    def __init__(
        self, listener: Listener, peer: str, engine: EngineName, arrived_at: float | None = None
    ) -> None:
        self._listener = listener
        self._peer = peer
        self._engine = engine
        self._transport: asyncio.Transport | None = None
        self._arrived_at = arrived_at
        self._http1 = Http1Connection(listener, peer, arrived_at)
        self._first = b""

    def __repr__(self) -> str:
        return f"<NegotiatedConnection peer={self._peer}>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's transports are no subclass of asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        tls = transport.get_extra_info("ssl_object")
        if tls is None:
            self._http1.connection_made(transport)
        elif tls.selected_alpn_protocol() == "h2":
            self._become_http2(transport)
        else:
            transport.set_protocol(self._http1)
            self._http1.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._http1.connection_lost(exc)

    def eof_received(self) -> bool:
        return False

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._first += data
        if _TELLING <= len(self._first) < len(PREFACE) and PREFACE.startswith(self._first):
            return
        if self._first.startswith(PREFACE):
            self._listener.closed(self._http1, self._peer)
            self._become_http2(self._transport).data_received(self._first)
        else:
            self._transport.set_protocol(self._http1)
            self._http1.data_received(self._first)

    def _become_http2(self, transport: asyncio.Transport) -> Http2Connection:
        connection = Http2Connection(self._listener, self._peer, self._engine, self._arrived_at)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        return connection
