"""HTTP/1.1 towards the client (RFC 9112): bytes to requests, answers to bytes.

The head is cut out and checked as raw bytes (gate.py), then parsed by llhttp; a body with
Content-Length is cut by counting, a chunked one is decoded by llhttp. So the parser never sees
two messages at once, and one request is answered before the next one is read.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

import httptools

from core.errors import BadRequest, GatewayError, PayloadTooLarge, RequestTimeout
from core.exchange import FlowSource, Header, Request
from proxy import gate
from proxy.answers import answer_error
from proxy.flow import NEVER

if TYPE_CHECKING:
    from proxy.listener import Listener

_MAX_EARLY = 65_536  # bytes that a client may send while its request is being answered
_MAX_FRAMING = 65_536  # chunk sizes, extensions and trailers of one chunked body
_FEW_CHUNKS = 1024  # so many chunks may be as small as they like
_SMALL_CHUNK = 16
_LINGER_S = 1.0
_RATE_GRACE_S = 5.0  # a body's rate is not judged earlier: one lost packet costs a second or more
_EMPTY_LINES = re.compile(rb"(?:\r\n)+")
_FRAMING_FIELDS = frozenset({b"content-length", b"transfer-encoding"})
_REASONS = {s.value: s.phrase.encode("ascii") for s in HTTPStatus} | {499: b"Client Closed Request"}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"


class Http1Exchange:
    """The `core.exchange.Exchange` of HTTP/1.1. The head travels with the first body bytes."""

    __slots__ = (
        "_chunked",
        "_connection",
        "_head",
        "bytes_sent",
        "gone",
        "id",
        "request",
        "source",
        "started",
        "task",
    )

    def __init__(self, connection: Http1Connection, request: Request) -> None:
        self.id = os.urandom(16).hex()
        self.request = request
        self.started = False
        self.gone = False
        self.bytes_sent = 0
        self.source: FlowSource | None = None
        self.task: asyncio.Task[None] | None = None
        self._connection: Http1Connection | None = connection
        self._head = b""
        self._chunked = False

    def __repr__(self) -> str:
        return f"<Http1Exchange {self.id} started={self.started} gone={self.gone}>"

    def start(self, status: int, headers: Sequence[Header], length: int | None) -> None:
        connection = self._connection
        self.started = True
        if connection is None:
            return
        self._chunked = length is None and self.request.version != "1.0"
        if length is None and not self._chunked:
            connection.keep_alive = False  # the end of the connection ends the body
        self._head = connection.head(status, headers, length, chunked=self._chunked)

    def write(self, data: bytes) -> None:
        connection = self._connection
        if connection is None or not data:
            return
        if self.request.method == "HEAD":
            return
        self.bytes_sent += len(data)
        if self._chunked:
            data = b"%b%x\r\n%b\r\n" % (self._head, len(data), data)
        elif self._head:
            data = self._head + data
        self._head = b""
        connection.write(data)

    def finish(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            chunked = self._chunked and self.request.method != "HEAD"
            connection.end(self._head + _LAST_CHUNK if chunked else self._head)

    def abort(self) -> None:
        """The client must not take what it has for complete: no last chunk; a reset where the
        end of the connection would have been the end of the body."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.cut(self._head, hard=self.started and not self._chunked)

    def detach(self) -> None:
        """The client is gone: nothing written from now on has a place to go."""
        self._connection = None
        self.gone = True


class Http1Connection(asyncio.Protocol):
    """One client connection. States: reading a head, reading a body, answering, closing."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._buffer = b""
        self._parser: httptools.HttpRequestParser | None = None
        self._headers: list[Header] = []
        self._target = b""
        self._body: list[bytes] = []
        self._received = 0  # body bytes as they came, framing included
        self._decoded = 0
        self._framing: gate.Framing | None = None
        self._complete = False
        self._method = self._version = ""
        self._closing = False
        self._lingering = False
        self._exchange: Http1Exchange | None = None
        self._received_at = 0.0
        self._body_started_at = 0.0
        self._paused = False
        self.keep_alive = True
        self.deadline_at = NEVER

    def __repr__(self) -> str:
        return f"<Http1Connection peer={self._peer} exchange={self._exchange}>"

    # --- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's transports are no subclass of asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=65_536)
        peer = transport.get_extra_info("peername")
        self._peer = peer[0] if isinstance(peer, tuple) and peer else "unix"
        if not self._listener.opened(self, self._peer):
            self._closing = True
            transport.abort()
            return
        self.deadline_at = self._listener.now() + self._listener.timeouts.head_s

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.closed(self, self._peer)
        self._closing = True
        self.deadline_at = NEVER
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.detach()
            if exchange.task is not None:
                exchange.task.cancel()

    def eof_received(self) -> bool:
        return False  # a client that closes its side has left

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if self._exchange is not None or self._paused:
            self._buffer_early(data)
            return
        try:
            if self._framing is None:
                self._buffer = self._buffer + data if self._buffer else data
                self._read_head()
            else:
                self._read_body(data)
        except GatewayError as error:
            self._refuse(error)

    def pause_writing(self) -> None:
        self._paused = True
        if self._exchange is not None and self._exchange.source is not None:
            self._exchange.source.pause_reading()
        self.deadline_at = self._listener.now() + self._listener.timeouts.write_idle_s

    def resume_writing(self) -> None:
        self._paused = False
        if self._closing:
            return
        if self._exchange is None:
            self._await_request()
            return
        self.deadline_at = NEVER
        if self._exchange.source is not None:
            self._exchange.source.resume_reading()

    def on_deadline(self, now: float) -> None:
        """The client is too slow with a head or a body, idle, or does not read its answer."""
        timeouts = self._listener.timeouts
        if self._closing or self._paused:
            self._abort()
        elif self._framing is not None:
            elapsed = now - self._body_started_at
            if elapsed < timeouts.body_s and self._received >= timeouts.body_min_rate * elapsed:
                self.deadline_at = min(now + 1.0, self._body_started_at + timeouts.body_s)
                return
            self._refuse(RequestTimeout("The body did not arrive in time."))
        elif self._buffer:
            self._refuse(RequestTimeout("The request head did not arrive in time."))
        else:
            self._close()

    # --- reading a request

    def _read_head(self) -> None:
        empty = _EMPTY_LINES.match(self._buffer)  # RFC 9112 section 2.2
        if empty is not None:
            self._buffer = self._buffer[empty.end() :]
        if not self._buffer:
            return
        if not self._received_at:
            self._received_at = self._listener.now()
            self.deadline_at = self._received_at + self._listener.timeouts.head_s
        limits = self._listener.limits
        end = self._buffer.find(b"\r\n\r\n", 0, limits.max_header_bytes)
        if end < 0:
            gate.check_partial_head(self._buffer, limits)
            return
        head, rest = self._buffer[: end + 4], self._buffer[end + 4 :]
        self._buffer = b""
        gate.check_raw_head(head)
        self._headers = []
        self._target = b""
        self._complete = False
        parser = self._parser = httptools.HttpRequestParser(self)
        self._feed(parser, head)
        self._method = parser.get_method().decode("ascii")
        self._version = parser.get_http_version()
        framing = gate.check_head(self._version, self._headers, limits)
        if framing.length is None and self._complete:
            # With Upgrade, llhttp takes what follows the head for another protocol.
            raise BadRequest("Upgrade is not supported.", code="bad_framing")
        self._framing = framing
        self._body = []
        self._received = self._decoded = 0
        self._body_started_at = self._listener.now()
        if framing.length == 0:
            self._buffer = rest
            self._request_complete()
            return
        self.deadline_at = self._body_started_at + min(
            _RATE_GRACE_S, self._listener.timeouts.body_s
        )
        if framing.expects_continue and not rest:
            self.write(_CONTINUE)
        if rest:
            self._read_body(rest)

    def _read_body(self, data: bytes) -> None:
        assert self._framing is not None
        self._received += len(data)
        length = self._framing.length
        if length is None:
            self._read_chunked(data)
            return
        if self._received < length:
            self._body.append(data)
            return
        surplus = self._received - length
        if surplus:
            self._buffer = data[-surplus:]
            data = data[:-surplus]
        self._body.append(data)
        self._request_complete()

    def _read_chunked(self, data: bytes) -> None:
        assert self._parser is not None
        fields = len(self._headers)
        self._feed(self._parser, data)
        limits = self._listener.limits
        if self._decoded > limits.max_body_bytes:
            raise PayloadTooLarge(f"The body is larger than {limits.max_body_bytes} bytes.")
        chunks = len(self._body)
        if self._received - self._decoded > _MAX_FRAMING + 16 * chunks:
            raise BadRequest("The chunked body is mostly framing.", code="bad_framing")
        if chunks > _FEW_CHUNKS and self._decoded < _SMALL_CHUNK * chunks:
            raise BadRequest("The chunks of the body are too small.", code="bad_framing")
        del self._headers[fields:]  # trailers are not headers
        if self._complete:
            self._request_complete()

    def _feed(self, parser: httptools.HttpRequestParser, data: bytes) -> None:
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # an offer that is not taken up (RFC 9110 section 7.8)
        except httptools.HttpParserError:
            if self._framing is not None and self._complete:
                return  # what came behind a complete body is dropped, good or bad
            raise BadRequest("The request is not valid HTTP/1.1.", code="bad_http") from None

    def _request_complete(self) -> None:
        target = self._target.decode("ascii")
        path, _, query = target.partition("?")
        gate.check_path(path)
        now = self._listener.now()
        request = Request(
            method=self._method,
            path=path,
            query=query,
            headers=self._headers,
            body=b"".join(self._body),
            peer=self._peer,
            version=self._version,
            received_at=self._received_at,
            complete_at=now,
        )
        self._parser = None
        self._framing = None
        self._body = []
        self.deadline_at = NEVER
        self._exchange = exchange = Http1Exchange(self, request)
        exchange.task = self._listener.begin(exchange)

    def _buffer_early(self, data: bytes) -> None:
        """Keep what a pipelining client sent too early, within bounds. Reading never stops:
        a paused transport would not report that the client left."""
        if len(self._buffer) + len(data) > _MAX_EARLY:
            self.keep_alive = False
            self._buffer = b""
        elif self.keep_alive:
            self._buffer += data

    def _read_pipelined(self) -> None:
        idle = self._exchange is None and self._framing is None and not self._paused
        if idle and self._buffer:
            data, self._buffer = self._buffer, b""
            self.data_received(data)

    # --- llhttp's calls

    def on_url(self, url: bytes) -> None:
        if not self._complete:
            self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._complete:
            return
        name = name.lower()
        if name not in _FRAMING_FIELDS:  # those are judged as they came
            value = value.rstrip(b" \t")
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if not self._complete and self._parser is not None:  # later it has forgotten
            self.keep_alive = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        if not self._complete:
            self._body.append(body)
            self._decoded += len(body)

    def on_message_begin(self) -> None:
        if self._complete:  # bytes behind a chunked body: dropped, and the connection ends
            self.keep_alive = False

    def on_message_complete(self) -> None:
        self._complete = True

    # --- writing an answer

    def head(
        self, status: int, headers: Sequence[Header], length: int | None, *, chunked: bool
    ) -> bytes:
        lines = [b"HTTP/1.1 %d %b\r\n" % (status, _REASONS.get(status, b"")), self._listener.date]
        lines += [b"%b: %b\r\n" % header for header in headers]
        if chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        elif length is not None and status not in (204, 304):
            lines.append(b"content-length: %d\r\n" % length)
        if not self.keep_alive or self._listener.draining:
            self.keep_alive = False
            lines.append(b"connection: close\r\n")
        elif self._exchange is not None and self._exchange.request.version == "1.0":
            lines.append(b"connection: keep-alive\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._closing:
            self._transport.write(data)

    def end(self, data: bytes) -> None:
        """The answer is complete: read the next request, or close."""
        if data:
            self.write(data)
        self._exchange = None
        self._received_at = 0.0
        if self._lingering:
            self._linger()
        elif not (self._paused and self.keep_alive):
            self._await_request()  # otherwise it waits until the client reads this answer

    def _await_request(self) -> None:
        if not self.keep_alive or self._listener.draining:
            self._close()
            return
        self.deadline_at = self._listener.now() + self._listener.timeouts.keep_alive_s
        if self._buffer:  # not from here: the caller is still finishing its own work
            self._listener.loop.call_soon(self._read_pipelined)

    def cut(self, data: bytes, *, hard: bool) -> None:
        """End the connection in the middle of an answer."""
        if data:
            self.write(data)
        self._exchange = None
        if hard:
            self._abort()
        else:
            self._close()

    def shut_idle(self) -> None:
        """Drain: close when no request is being read or answered."""
        if self._exchange is None and self._framing is None and not self._buffer:
            self._close()

    def _refuse(self, error: GatewayError) -> None:
        """Answer a request that never became one, then close: its end is not known."""
        self.keep_alive = False
        self._lingering = True
        self._framing = None
        self._buffer = b""
        request = Request("", "", "", (), b"", self._peer, "1.1", self._received_at, 0.0)
        self._exchange = exchange = Http1Exchange(self, request)
        answer_error(exchange, error, [(b"x-request-id", exchange.id.encode("ascii"))])
        self._listener.refused(exchange, error)

    def _close(self) -> None:
        """Flush what was written, then close; a peer that does not read is cut off."""
        if self._transport is not None and not self._closing:
            self._closing = True
            self.deadline_at = self._listener.now() + self._listener.timeouts.write_idle_s
            self._transport.close()

    def _linger(self) -> None:
        """Close after an answer to a request that is still arriving: unread bytes would turn
        the close into a reset that can swallow the answer (RFC 9112 section 9.6)."""
        if self._transport is not None and not self._closing:
            self._closing = True
            self.deadline_at = self._listener.now() + _LINGER_S
            if self._transport.can_write_eof():
                self._transport.write_eof()

    def _abort(self) -> None:
        self._closing = True
        self.deadline_at = NEVER
        if self._transport is not None:
            self._transport.abort()
