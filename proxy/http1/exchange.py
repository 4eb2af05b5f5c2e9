"""One request of an HTTP/1.1 connection and the answer being written to it (RFC 9112)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

from core.exchange import FlowSource, Header, Request
from proxy.listen.request_ids import request_ids

if TYPE_CHECKING:
    import asyncio

_STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode("ascii"))
    for status in HTTPStatus
}
_NO_BODY = (204, 304)
_LINE = b"%b: %b\r\n".__mod__


class AnswerSink(Protocol):
    """What an exchange needs of its connection. `date` is a complete header line; `send` is the
    transport's write, called directly because it is called for every chunk."""

    keep_alive: bool
    send: Callable[[bytes], object]

    @property
    def date(self) -> bytes: ...

    def end(self, data: bytes) -> None: ...

    def cut(self, data: bytes, *, hard: bool) -> None: ...


class Http1Exchange:
    """The `core.exchange.Exchange` of HTTP/1.1. The head travels with the first body bytes."""

    __slots__ = (
        "_chunked",
        "_connection",
        "_flowing",
        "_head",
        "_send",
        "bytes_sent",
        "gone",
        "id",
        "request",
        "source",
        "started",
        "task",
    )

    def __init__(self, connection: AnswerSink, request: Request) -> None:
        self.id = request_ids.draw()
        self.request = request
        self.started = False
        self.gone = False
        self.bytes_sent = 0
        self.source: FlowSource | None = None
        self.task: asyncio.Task[None] | None = None
        self._connection: AnswerSink | None = connection
        self._send = connection.send
        self._head = b""
        self._chunked = False
        self._flowing = False  # the head is out, and chunks may follow

    def __repr__(self) -> str:
        return f"<Http1Exchange {self.id} started={self.started} gone={self.gone}>"

    def start(self, status: int, headers: Sequence[Header], length: int | None) -> None:
        connection = self._connection
        self.started = True
        if connection is None:
            return
        old = self.request.version == "1.0"
        lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status, connection.date]
        lines += map(_LINE, headers)
        if length is not None:
            if status not in _NO_BODY:
                lines.append(b"content-length: %d\r\n" % length)
        elif old:
            connection.keep_alive = False  # the end of the connection ends the body
        else:
            self._chunked = self.request.method != "HEAD"
            lines.append(b"transfer-encoding: chunked\r\n")
        if not connection.keep_alive:
            lines.append(b"connection: close\r\n")
        elif old:
            lines.append(b"connection: keep-alive\r\n")
        lines.append(b"\r\n")
        self._head = b"".join(lines)

    @property
    def framed(self) -> Callable[[bytes], object] | None:
        """Where whole chunks of HTTP/1.1 may be written as they are; None while none may follow.
        Nothing must be written after `detach`, which pauses the source, nor after `finish`."""
        return self._send if self._flowing else None

    def write(self, data: bytes) -> None:
        if self._flowing and data:  # each chunk but the first
            self.bytes_sent += len(data)
            self._send(b"%x\r\n%b\r\n" % (len(data), data))
            return
        connection = self._connection
        if connection is None or not data or self.request.method == "HEAD":
            return
        self.bytes_sent += len(data)
        if self._chunked:
            data = b"%b%x\r\n%b\r\n" % (self._head, len(data), data)
        elif self._head:
            data = self._head + data
        self._head = b""
        self._flowing = self._chunked
        self._send(data)

    def finish(self, data: bytes = b"") -> None:
        connection, self._connection = self._connection, None
        self._flowing = False
        if connection is None:
            return
        if self.request.method == "HEAD":
            data = b""
        self.bytes_sent += len(data)
        if self._chunked:
            chunk = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            data = b"%b%b0\r\n\r\n" % (self._head, chunk)
        else:
            data = self._head + data
        connection.end(data)

    def abort(self) -> None:
        """The client must not take what it has for complete: no last chunk; a reset where the
        end of the connection would have been the end of the body."""
        connection, self._connection = self._connection, None
        self._flowing = False
        if connection is not None:
            connection.cut(self._head, hard=self.started and not self._chunked)

    def detach(self) -> None:
        """The client is gone: nothing written from now on has a place to go."""
        self._connection = None
        self._flowing = False
        if self.source is not None:
            self.source.pause_reading()  # it may hold `framed`
        self.gone = True
