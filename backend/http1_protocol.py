"""A socket that speaks HTTP/1.1 to a replica: request out, response in, then back to the pool.

The path of a chunk is: the transport calls `data_received`, llhttp appends the body bytes to one
list, and the handler gets them joined, in one call. Everything else (head, end, faults) leaves
that path at one test. A replica's bytes are not trusted more than a client's: see `framing`.

llhttp judges the head and says where it ends, but is not asked for its headers: they are cut from
the bytes in one go, which is a third of the cost of a call for each of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, cast

import httptools

from backend.framing import EMPTY_BODY, HEAD_BYTES, INFORMATIONAL, Refused, read_head
from backend.request_head import RequestHead
from backend.response import Hold, ResponseHandler
from core.errors import UpstreamError, UpstreamProtocolError, UpstreamReset
from core.exchange import Header


class ConnectionOwner(Protocol):
    """The pool, as a socket sees it."""

    def released(self, protocol: Http1Protocol) -> None:
        """A response ended and the socket can serve another request."""

    def lost(self, protocol: Http1Protocol) -> None:
        """The socket is closed. Called once."""


def _nowhere(data: bytes) -> None:
    """Stands where the parser was."""


def _never() -> bool:
    return False


class Http1Protocol(asyncio.Protocol):
    """One socket to a replica. States: idle (no handler), head, body, closed.

    `served` counts ended responses, `reads` the reads of the exchange at hand (but those that are
    `diverted`), `idle_at` is the monotonic instant of the last release (written by the pool).
    """

    __slots__ = (
        "_complete",
        "_early",
        "_feed",
        "_head",
        "_head_ready",
        "_headers",
        "_in_body",
        "_informational",
        "_keep_alive",
        "_method",
        "_owner",
        "_parser",
        "_parts",
        "_paused",
        "_persists",
        "_silent_bytes",
        "_silent_read",
        "_status",
        "_surplus",
        "_transport",
        "_until_eof",
        "closed",
        "data_received",
        "diverted",
        "handler",
        "hold",
        "idle_at",
        "on_body",
        "reads",
        "served",
    )

    def __init__(self, owner: ConnectionOwner, head: RequestHead) -> None:
        self._owner = owner
        self._head = head
        self._transport: asyncio.Transport | None = None
        self.handler: ResponseHandler | None = None
        self.hold: Hold | None = None
        self.closed = False
        self.served = 0
        self.reads = 0
        self.idle_at = 0.0
        self._paused = False
        self.diverted = False
        self.data_received = self._read  # type: ignore[method-assign]  # see `divert`
        self._parts: list[bytes] = []
        # The parser calls `list.append` itself: no Python frame for a chunk.
        self.on_body: Callable[[bytes], None] = self._parts.append
        self._reset()
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._feed: Callable[[bytes], None] = self._parser.feed_data
        self._persists: Callable[[], bool] = self._parser.should_keep_alive

    def __repr__(self) -> str:
        state = "closed" if self.closed else "idle" if self.handler is None else "busy"
        return f"<Http1Protocol {state}, served {self.served}>"

    def _reset(self) -> None:
        self._method = b""
        self._status = 0
        self._headers: Sequence[Header] = ()
        self._early = b""
        self._silent_bytes = 0
        self._silent_read = 0
        self._informational = 0
        self._head_ready = False
        self._in_body = False
        self._complete = False
        self._surplus = False
        self._keep_alive = False
        self._until_eof = False

    @property
    def usable(self) -> bool:
        """Whether a request can be sent as far as is known."""
        return not self.closed and self._transport is not None and not self._transport.is_closing()

    # --- the exchange's side

    def send(
        self,
        method: bytes,
        path: bytes,
        headers: Sequence[Header],
        body: bytes,
        handler: ResponseHandler,
    ) -> None:
        """As `Connection.send`. On a lost socket the handler hears so in the next loop tick."""
        if self.handler is not None:
            raise RuntimeError("a request is already under way on this connection")
        if self.closed or self._transport is None:
            error = self._reset_error("the connection was closed before the request", False)
            asyncio.get_running_loop().call_soon(handler.on_failed, error)
            self._let_go()
            return
        self._reset()
        self.reads = 0
        self._method = method
        self.handler = handler
        self._transport.write(self._head.build(method, path, headers, body))

    def divert(self, take: Callable[[bytes], None] | None) -> Callable[[bytes], None]:
        """As `Connection.divert`, or no longer."""
        self.diverted = take is not None
        self.data_received = take or self._read  # type: ignore[assignment]
        if self._transport is not None and not self.closed:
            self._transport.set_protocol(self)  # uvloop looks up where reads go only now
        return self._read

    def abort(self) -> None:
        """Close the socket at once and call nobody but the owner."""
        self.handler = None
        self._let_go()
        if self._transport is not None and not self.closed:
            self._transport.abort()

    def fail(self, error: UpstreamError) -> None:
        """Close the socket at once and tell the handler, if there is one."""
        handler = self.handler
        self.abort()
        if handler is not None:
            handler.on_failed(error)

    def pause_reading(self) -> None:
        if not self._paused and not self.closed and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._paused and not self.closed and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    # --- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def _read(self, data: bytes) -> None:
        handler = self.handler
        if handler is None:
            self.abort()  # bytes that nobody asked for (RFC 9112 section 9.2: a smuggled answer)
            return
        self.reads += 1
        if not self._status:
            self._early = self._early + data if self._early else data
        try:
            self._feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._complete:
                self._refuse(error)
                return
            self._surplus = True
        parts = self._parts
        if not self._in_body:
            self._advance(handler, data)
        elif parts:
            body = parts.pop() if len(parts) == 1 else self._joined()
            handler.on_body(body)
        else:
            self._count_silent(len(data))

    def eof_received(self) -> None:
        """The replica closed its side: the end of a body without length, otherwise a loss."""
        if self.handler is None:
            return
        if self._until_eof and self._in_body:
            self._end(self.handler)
        else:
            self._lose("the replica closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        if self.closed:
            return
        self.closed = True
        if self.handler is not None:
            self._lose("the connection to the replica was lost")
        # The parser and its callbacks refer to each other: help the collector.
        self._parser = None
        self.data_received = _nowhere  # type: ignore[method-assign]
        self._feed = _nowhere
        self._persists = _never
        self._owner.lost(self)

    # --- the parser's side

    def on_message_begin(self) -> None:
        if self._complete:
            self._surplus = True

    def on_headers_complete(self) -> None:
        if self._surplus:
            raise Refused("a second response follows")
        early = self._early
        end = early.find(b"\r\n\r\n")
        if not 0 <= end <= HEAD_BYTES:
            raise Refused("its header block is too large")
        status, headers, sized = read_head(early[:end])
        if status < 200:
            self._informational += 1
            if self._informational > INFORMATIONAL:
                raise Refused("too many interim responses")
            self._early = early[end + 4 :]
            return
        self._early = b""
        self._status = status
        self._headers = headers
        self._keep_alive = self._persists()
        self._head_ready = True
        if self._method == b"HEAD":
            # The parser cannot be told that no body follows: never use the socket again.
            self._complete = True
            self._keep_alive = False
        elif not sized and status not in EMPTY_BODY:
            self._until_eof = True

    def on_message_complete(self) -> None:
        if self._head_ready or self._in_body:
            self._complete = True
            self._in_body = False

    # --- off the path of a chunk

    def _joined(self) -> bytes:
        """All body bytes of one read."""
        body = b"".join(self._parts)
        self._parts.clear()
        return body

    def _advance(self, handler: ResponseHandler, data: bytes) -> None:
        """A read that touched the head or the end."""
        parts = self._parts
        if not self._status:
            if self.reads == 1 and not data.startswith(b"H"):
                self._refuse(Refused("it does not start with HTTP/"))
            else:
                self._count_silent(len(data))
            return
        if not parts:
            self._count_silent(len(data))
            if self.handler is not handler:
                return
        if self._head_ready:
            self._head_ready = False
            self._in_body = not self._complete
            handler.on_head(self._status, list(self._headers))
        if parts and self.handler is handler and self._method != b"HEAD":
            handler.on_body(self._joined())
        if self._complete and self.handler is handler:
            self._end(handler)

    def _end(self, handler: ResponseHandler) -> None:
        self.handler = None
        if self.diverted:
            self.divert(None)
        hold = self.hold
        if hold is not None:
            self.hold = None
            hold.detach()
        transport = self._transport
        usable = transport is not None and self._keep_alive and not self._surplus
        # Unsent request bytes would be read as the start of the next request.
        if transport is not None and usable and transport.get_write_buffer_size() == 0:
            self.served += 1
            if self._paused:
                self.resume_reading()
            self._owner.released(self)
        elif transport is not None:
            transport.abort()
        handler.on_end()

    def _let_go(self) -> None:
        if self.diverted:
            self.divert(None)
        if self.hold is not None:
            self.hold.detach()
            self.hold = None
        self._parts.clear()

    def _count_silent(self, size: int) -> None:
        """Bound what arrives without a body byte: a head, trailers, chunk extensions."""
        if self._silent_read != self.reads - 1:
            self._silent_bytes = 0
        self._silent_read = self.reads
        self._silent_bytes += size
        if self._silent_bytes > HEAD_BYTES:
            self._refuse(Refused("a header block without end"))

    def _refuse(self, error: Exception) -> None:
        cause = error.__context__ if isinstance(error.__context__, Refused) else error
        self.fail(UpstreamProtocolError(f"the replica's response is not acceptable: {cause}"))

    def _lose(self, what: str) -> None:
        self.fail(self._reset_error(what, self.reads > 0))

    def _reset_error(self, what: str, answered: bool) -> UpstreamReset:
        return UpstreamReset(what, reused=self.served > 0, answered=answered)
