"""HTTP/1.1 bytes to requests (RFC 9112). Pure: bytes and `now` in, requests out.

The head is cut out and parsed by the gate's grammar; a body with Content-Length is cut by
counting; a chunked one is decoded by llhttp, which has been shown the head first. So no parser
ever sees two messages at once.
"""

from __future__ import annotations

import re

import httptools

from core.errors import BadRequest, PayloadTooLarge
from core.exchange import Header, Request
from proxy import gate
from proxy.config import ListenLimits

_MAX_EARLY = 65_536  # bytes that a client may send while its request is being answered
_MAX_FRAMING = 65_536  # chunk sizes, extensions and trailers of one chunked body
_FEW_CHUNKS = 1024  # so many chunks may be as small as they like
_SMALL_CHUNK = 16
_SAFE_DIGITS = 9
_UNKNOWN: tuple[bytes, None, bytes] = (b"", None, b"")
_CONTENT_LENGTH = re.compile(rb"(?i)\r\ncontent-length: ?([0-9]+)\r\n")
_EMPTY_LINES = re.compile(rb"(?:\r\n)+")


class RequestReader:
    """Reads one request after the other of one connection.

    `feed` raises the GatewayError that refuses a request; its end is not known then, so nothing
    more can be read. `started_at` is when the first byte of the current request came (0.0: none
    yet), `received` counts its body's bytes as they came. `keep_alive` is what the last complete
    request allows.
    """

    __slots__ = (
        "_body",
        "_buffer",
        "_chunks",
        "_framing",
        "_head",
        "_last",
        "_limits",
        "_peer",
        "body_started_at",
        "keep_alive",
        "received",
        "started_at",
    )

    def __init__(self, limits: ListenLimits, peer: str) -> None:
        self._limits = limits
        self._peer = peer
        self._buffer = b""
        self._head: tuple[str, str, str, str, list[Header], dict[bytes, bytes]] | None = None
        self._last: tuple[bytes, gate.Framing | None, bytes] = _UNKNOWN
        self._framing: gate.Framing | None = None
        self._body: list[bytes] = []
        self._chunks: _ChunkedBody | None = None
        self.received = 0
        self.started_at = 0.0
        self.body_started_at = 0.0
        self.keep_alive = True

    def __repr__(self) -> str:
        return f"<RequestReader peer={self._peer} in_body={self.in_body} {len(self._buffer)} B>"

    @property
    def in_body(self) -> bool:
        return self._framing is not None

    @property
    def waiting(self) -> bool:
        """Whether bytes of a request that has not begun or is not complete are here."""
        return bool(self._buffer)

    @property
    def wants_continue(self) -> bool:
        """Whether the client waits for `100 Continue` before it sends its body."""
        return self._framing is not None and self._framing.expects_continue and not self.received

    def feed(self, data: bytes, now: float) -> Request | None:
        """Take the next bytes; the request once it is complete. What follows it is kept: feed
        b"" to go on with it."""
        if self._framing is not None:
            return self._read_body(data, now)
        buffer = self._buffer + data if self._buffer else data
        if buffer[:2] == b"\r\n":  # RFC 9112 section 2.2
            empty = _EMPTY_LINES.match(buffer)
            buffer = buffer[empty.end() :] if empty is not None else buffer
        self._buffer = buffer
        if not buffer:
            return None
        if not self.started_at:
            self.started_at = now
        limits = self._limits
        end = buffer.find(b"\r\n\r\n", 0, limits.max_header_bytes)
        if end < 0:
            gate.check_partial_head(buffer, limits)
            return None
        end += 4
        self._buffer = b""
        framing = self._framing_of(buffer[:end])
        self.keep_alive = framing.keep_alive
        self.received = 0
        self.body_started_at = now
        rest = buffer[end:]
        if framing.length == 0:
            self._buffer = rest
            return self._complete(b"", now)
        self._framing = framing
        self._body = []
        if framing.length is None:
            self._chunks = _ChunkedBody(buffer[:end])
        return self._read_body(rest, now) if rest else None

    def keep_early(self, data: bytes) -> bool:
        """Keep what a pipelining client sent too early; False when it is too much."""
        if len(self._buffer) + len(data) > _MAX_EARLY:
            self._buffer = b""
            return False
        self._buffer += data
        return True

    def drop(self) -> None:
        """Forget what has been read: the request was refused."""
        self._framing = None
        self._buffer = b""

    def _framing_of(self, head: bytes) -> gate.Framing:
        """Parse and check a head. A client repeats its head from request to request but for the
        Content-Length: one that is equal to the last one up to that number was judged before."""
        before, framing, after = self._last
        if framing is not None and head.startswith(before) and head.endswith(after):
            digits = head[len(before) : len(head) - len(after)]
            if digits.isdigit() and len(digits) <= _SAFE_DIGITS:
                length = int(digits)
                if length <= self._limits.max_body_bytes:
                    return framing._replace(length=length)
        method, target, version, headers = gate.parse_head(head)
        framing = gate.check_head(version, headers, self._limits)
        path, _, query = target.partition("?")
        gate.check_path(path)
        headers = [header for header in headers if header[0] != b"content-length"]
        self._head = (method, path, query, version, headers, dict(reversed(headers)))
        self._last = _UNKNOWN
        found = _CONTENT_LENGTH.search(head)
        if found is not None and framing.length is not None:
            self._last = (head[: found.start(1)], framing, head[found.end(1) :])
        return framing

    def _read_body(self, data: bytes, now: float) -> Request | None:
        assert self._framing is not None
        self.received += len(data)
        length = self._framing.length
        if length is None:
            return self._read_chunked(data, now)
        surplus = self.received - length
        if surplus < 0:
            self._body.append(data)
            return None
        if surplus:
            self._buffer = data[-surplus:]
            data = data[:-surplus]
        if self._body:
            self._body.append(data)
            data = b"".join(self._body)
        return self._complete(data, now)

    def _read_chunked(self, data: bytes, now: float) -> Request | None:
        chunks = self._chunks
        assert chunks is not None
        chunks.feed(data)
        limits = self._limits
        if chunks.size > limits.max_body_bytes:
            raise PayloadTooLarge(f"The body is larger than {limits.max_body_bytes} bytes.")
        count = len(chunks.parts)
        if self.received - chunks.size > _MAX_FRAMING + 16 * count:
            raise BadRequest("The chunked body is mostly framing.", code="bad_framing")
        if count > _FEW_CHUNKS and chunks.size < _SMALL_CHUNK * count:
            raise BadRequest("The chunks of the body are too small.", code="bad_framing")
        if not chunks.complete:
            return None
        if chunks.surplus:  # dropped, and so the connection cannot go on
            self.keep_alive = False
        self._chunks = None
        return self._complete(b"".join(chunks.parts), now)

    def _complete(self, body: bytes, now: float) -> Request:
        assert self._head is not None
        method, path, query, version, headers, values = self._head
        self._framing = None
        self._body = []
        started_at, self.started_at = self.started_at, 0.0
        return Request(
            method,
            path,
            query,
            headers,
            body,
            self._peer,
            version,
            started_at,
            now,
            self.body_started_at,
            values=values,
        )


class _ChunkedBody:
    """llhttp at work on one chunked body. Trailers are dropped; what follows the body, good or
    bad, is only noted (`surplus`)."""

    __slots__ = ("_parser", "complete", "parts", "size", "surplus")

    def __init__(self, head: bytes) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self.complete = False
        self.surplus = False
        self._parser = httptools.HttpRequestParser(self)
        self.feed(head)
        if self.complete:
            # With Upgrade, llhttp takes what follows the head for another protocol.
            raise BadRequest("Upgrade is not supported.", code="bad_framing")

    def feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.surplus = True
        except httptools.HttpParserError:
            if not self.complete:
                raise BadRequest("The request is not valid HTTP/1.1.", code="bad_http") from None
            self.surplus = True

    def on_body(self, body: bytes) -> None:
        if not self.complete:
            self.parts.append(body)
            self.size += len(body)

    def on_message_begin(self) -> None:
        self.surplus = self.complete

    def on_message_complete(self) -> None:
        self.complete = True
