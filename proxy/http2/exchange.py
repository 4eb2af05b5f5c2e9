"""One stream of an HTTP/2 connection and the answer being written to it (RFC 9113 section 8)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from core.exchange import FlowSource, Header, Request
from proxy.listen.request_ids import request_ids

if TYPE_CHECKING:
    import asyncio

_NO_BODY = (204, 304)


class StreamSink(Protocol):
    """What an exchange needs of its connection. `date` is a field; `send` is the engine's, called
    directly because it is called for every chunk, and `due` spares the call of `flush_soon`."""

    due: bool
    send: Callable[[int, bytes], object]

    @property
    def date(self) -> Header: ...

    def flush_soon(self, exchange: Http2Exchange) -> None:
        """Something was sent: write it before the loop waits again."""

    def respond(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None: ...

    def end(self, exchange: Http2Exchange, data: bytes | None) -> None:
        """The answer is complete with `data` (None: with its head)."""

    def cut(self, exchange: Http2Exchange) -> None:
        """The answer ends before it is complete."""


class StreamsConnection(StreamSink, Protocol):
    """The connection, as all its streams together see it. `now` is when it last heard something."""

    now: float

    @property
    def writing_paused(self) -> bool: ...

    def admit(self, request: Request) -> None: ...

    def began(self, fragile: bool) -> None:
        """A request begins; `fragile` is its client."""

    def retire(self) -> None:
        """Take no more streams, as soon as the client can be told so."""

    def look_by(self, at: float) -> None:
        """Call `check` at that instant, if not before."""

    def settings_came(self) -> None: ...

    def settings_answered(self) -> None: ...

    def ping_answered(self) -> None: ...


class Http2Exchange:
    """The `core.exchange.Exchange` of HTTP/2. The head travels with the first body bytes."""

    __slots__ = (
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
        "stream_id",
        "task",
    )

    def __init__(self, connection: StreamSink, stream_id: int, request: Request) -> None:
        self.id = request_ids.draw()
        self.request = request
        self.stream_id = stream_id
        self.started = False
        self.gone = False
        self.bytes_sent = 0
        self.source: FlowSource | None = None
        self.task: asyncio.Task[None] | None = None
        self._connection: StreamSink | None = connection
        self._send = connection.send
        self._head: list[Header] | None = None
        self._flowing = False  # the head is out, and bytes may follow

    @property
    def framed(self) -> None:
        """Frames of HTTP/2 are not what a replica sends."""

    def __repr__(self) -> str:
        return f"<Http2Exchange {self.id} started={self.started} gone={self.gone}>"

    def start(self, status: int, headers: Sequence[Header], length: int | None) -> None:
        connection = self._connection
        self.started = True
        if connection is None:
            return
        head = [(b":status", b"%d" % status), connection.date, *headers]
        if length is not None and status not in _NO_BODY:
            head.append((b"content-length", b"%d" % length))
        self._head = head

    def write(self, data: bytes) -> None:
        connection = self._connection
        if connection is None or not data:
            return
        if not self._flowing:
            if self.request.method == "HEAD":
                return
            self._flowing = True
            self._respond(connection, end_stream=False)
        self.bytes_sent += len(data)
        self._send(self.stream_id, data)
        if not connection.due:
            connection.flush_soon(self)

    def finish(self, data: bytes = b"") -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self.request.method == "HEAD":
            data = b""
        self.bytes_sent += len(data)
        headed = self._head is None
        self._respond(connection, end_stream=not data)
        connection.end(self, data if data or headed else None)

    def abort(self) -> None:
        """The client must not take what it has for complete: the stream is reset."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.cut(self)

    def detach(self) -> None:
        """The client is gone: nothing written from now on has a place to go."""
        self._connection = None
        self.gone = True

    def _respond(self, connection: StreamSink, *, end_stream: bool) -> None:
        head, self._head = self._head, None
        if head is not None:
            connection.respond(self.stream_id, head, end_stream)
