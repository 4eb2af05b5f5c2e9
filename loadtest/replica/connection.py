"""One client connection of the fake replica: HTTP/1.1 in, bytes out. Performs (owns the transport).

Like uvicorn it answers `Expect: 100-continue`, keeps a connection alive for some seconds after an
answer (before the first request for ever) and serves pipelined requests one after the other.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

import httptools


class Request:
    """One whole request; header names in lower case, the last of equal names wins."""

    __slots__ = ("body", "headers", "keep_alive", "method", "path")

    def __init__(
        self, method: str, path: str, headers: dict[str, str], body: bytes, keep_alive: bool = True
    ) -> None:
        self.keep_alive = keep_alive
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body

    def __repr__(self) -> str:
        return f"<Request {self.method} {self.path} {len(self.body)} bytes>"


class Application(Protocol):
    """What a connection needs of the replica."""

    connections: set[Connection]
    keep_alive_s: float

    def handle(self, connection: Connection, request: Request) -> None: ...
    def changed(self) -> None: ...


class Connection(asyncio.Protocol):
    """Reads requests and hands them on one at a time; the answer ends with `finished`."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._transport: asyncio.Transport
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._pending: deque[Request] = deque()
        self._busy = False
        self._keep_alive = True
        self._idle_timer: asyncio.TimerHandle | None = None
        self._slicer: Slicer | None = None
        self.written = 0
        self.writable = True
        self.on_writable: Callable[[], None] | None = None
        self.on_lost: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<Connection busy={self._busy} written={self.written}>"

    # -- asyncio ---------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self._application.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm_idle()
        self._application.connections.discard(self)
        lost, self.on_lost, self.on_writable = self.on_lost, None, None
        if lost is not None:
            lost()
        self._application.changed()

    def data_received(self, data: bytes) -> None:
        self._disarm_idle()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # uvicorn ignores an upgrade that it does not know
        except httptools.HttpParserError:
            body = b"Invalid HTTP request received."
            self._transport.write(
                b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n"
                b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body)
            )
            self._transport.close()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        if self.on_writable is not None:
            self.on_writable()

    # -- httptools -------------------------------------------------------------------------------
    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower().decode("latin-1")] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode()
        path = self._path.decode("latin-1").partition("?")[0]
        # asked for here: when the answer ends, the parser has forgotten it
        keep_alive = self._parser.should_keep_alive()
        request = Request(method, path, self._headers, b"".join(self._body), keep_alive)
        self._path, self._headers, self._body = b"", {}, []
        if self._busy:
            self._pending.append(request)
        else:
            self._serve(request)

    # -- for answers -----------------------------------------------------------------------------
    def write(self, data: bytes) -> None:
        self.written += len(data)
        if self._slicer is None:
            self._transport.write(data)
        else:
            self._slicer.write(data)

    def slice_writes(self, seed: int | None) -> None:
        """Cut all later writes: at random places (by `seed`), or into single bytes (None)."""
        self._slicer = Slicer(self._transport, self._loop, seed)

    def finished(self) -> None:
        """The answer is complete: keep the connection for the next request."""
        if self._slicer is not None:
            slicer, self._slicer = self._slicer, None
            slicer.then(self.finished)
            return
        self._busy, self.on_lost = False, None
        if self._transport.is_closing():
            return
        if self._pending:
            self._serve(self._pending.popleft())
        elif not self._keep_alive:
            self._transport.close()
        else:
            self._arm_idle()

    def close(self) -> None:
        """FIN after what was written."""
        if self._slicer is not None:
            self._slicer.then(self._transport.close)
        else:
            self._transport.close()

    def reset(self) -> None:
        """RST: SO_LINGER 0, then close."""
        peer = self._transport.get_extra_info("socket")
        if peer is not None and not self._transport.is_closing():
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def _serve(self, request: Request) -> None:
        self._busy, self._keep_alive = True, request.keep_alive
        self._application.handle(self, request)

    def _arm_idle(self) -> None:
        seconds = self._application.keep_alive_s
        self._idle_timer = self._loop.call_later(seconds, self._transport.close)

    def _disarm_idle(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None


class Slicer:
    """Writes in small pieces, each in its own turn of the loop."""

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, seed: int | None
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._random = None if seed is None else random.Random(seed)
        self._buffer = bytearray()
        self._then: Callable[[], None] | None = None
        self._scheduled = False

    def __repr__(self) -> str:
        return f"<Slicer {len(self._buffer)} bytes to go>"

    def write(self, data: bytes) -> None:
        self._buffer += data
        self._schedule()

    def then(self, action: Callable[[], None]) -> None:
        """Do `action` when everything is written."""
        self._then = action
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._step)

    def _step(self) -> None:
        self._scheduled = False
        if self._transport.is_closing():
            return
        size = 1 if self._random is None else self._random.randint(1, 97)
        piece = bytes(self._buffer[:size])
        del self._buffer[:size]
        if piece:
            self._transport.write(piece)
        if self._buffer:
            self._schedule()
        elif self._then is not None:
            action, self._then = self._then, None
            action()
