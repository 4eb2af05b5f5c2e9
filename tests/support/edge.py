"""A client connection without sockets: a fake transport, a fake listener and a clock by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from core.errors import GatewayError
from core.exchange import Request
from core.metrics import Metrics
from proxy.config import ListenLimits, ListenTimeouts
from proxy.http1.connection import Http1Connection
from proxy.http1.exchange import Http1Exchange
from proxy.listen.listener import Listener
from proxy.overload.admission import Admission


class FakeTransport:
    """What the connection does to its transport."""

    def __init__(self) -> None:
        self.written = b""
        self.buffered = 100_000
        self.closed = self.aborted = self.half_closed = False

    def get_extra_info(self, name: str) -> object:
        return None

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == 65_536

    def write(self, data: bytes) -> None:
        assert data
        assert not self.over
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.half_closed = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    @property
    def over(self) -> bool:
        return self.closed or self.aborted


class FakeTask:
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class FakeLoop:
    calls: list[Callable[[], None]] = field(default_factory=list)

    def call_soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)


class FakeListener:
    """Counts, collects the exchanges that began and the refusals; `clock` is set by hand."""

    def __init__(self, timeouts: ListenTimeouts, limits: ListenLimits) -> None:
        self.timeouts = timeouts
        self.limits = limits
        self.admission = Admission(limits, Metrics.private())
        self.keep_alive = True
        self.tls: Any = None
        self.date = b"date: Mon, 30 Nov 2026 12:00:00 GMT\r\n"
        self.loop = FakeLoop()
        self.clock = 100.0
        self.open = 0
        self.begun: list[Http1Exchange] = []
        self.refusals: list[GatewayError] = []

    def now(self) -> float:
        return self.clock

    def opened(self, connection: Http1Connection, peer: str) -> None:
        self.open += 1

    def closed(self, connection: Http1Connection, peer: str) -> None:
        self.open -= 1

    def admit(self, session: object, request: Request) -> None:
        self.tls.admit(session, request)

    def begin(self, exchange: Http1Exchange) -> FakeTask:
        self.begun.append(exchange)
        return FakeTask()

    def refused(self, exchange: Http1Exchange, error: GatewayError) -> None:
        self.refusals.append(error)


class Edge:
    """One connection. `settle` does what the event loop and the handler would do: it answers
    every request that began, with `answer`, until nothing is left."""

    def __init__(
        self,
        *,
        timeouts: ListenTimeouts | None = None,
        limits: ListenLimits | None = None,
        peer: str = "192.0.2.1",
    ) -> None:
        self.listener = FakeListener(timeouts or ListenTimeouts(), limits or ListenLimits())
        self.connection = Http1Connection(cast(Listener, self.listener), peer)
        self.transport = FakeTransport()
        self.answered = 0
        self.connection.connection_made(cast(Any, self.transport))

    @property
    def requests(self) -> list[Request]:
        return [exchange.request for exchange in self.listener.begun]

    @property
    def exchange(self) -> Http1Exchange:
        return self.listener.begun[-1]

    @property
    def task(self) -> FakeTask:
        return cast(FakeTask, self.exchange.task)

    @property
    def replies(self) -> list[Reply]:
        return replies(self.transport.written, [request.method for request in self.requests])

    def send(self, *pieces: bytes) -> Edge:
        for piece in pieces:
            if not self.transport.over:
                self.connection.data_received(piece)
        return self

    def talk(self, *pieces: bytes) -> Edge:
        """Send the pieces, and let everything happen that follows from each."""
        for piece in pieces:
            self.send(piece).settle()
        return self

    def settle(self) -> Edge:
        calls = self.listener.loop.calls
        while calls or self.answered < len(self.listener.begun):
            if calls:
                calls.pop(0)()
                continue
            exchange = self.listener.begun[self.answered]
            self.answered += 1
            answer(exchange, exchange.request.path.encode())
        return self

    def wait(self, seconds: float) -> Edge:
        """Move the clock and sweep, as the watchdog does."""
        self.listener.clock += seconds
        if self.connection.deadline_at <= self.listener.clock:
            self.connection.on_deadline(self.listener.clock)
        return self

    def lose(self) -> Edge:
        self.connection.connection_lost(None)
        return self


def answer(exchange: Http1Exchange, body: bytes, *, status: int = 200) -> None:
    exchange.start(status, [(b"content-type", b"text/plain")], len(body))
    exchange.write(body)
    exchange.finish()


@dataclass
class Reply:
    status: int
    headers: dict[bytes, bytes]
    body: bytes


def replies(written: bytes, methods: Sequence[str] = ()) -> list[Reply]:
    """The answers in what a server wrote, parsed strictly; `methods` of their requests."""
    found: list[Reply] = []
    while written:
        head, end, rest = written.partition(b"\r\n\r\n")
        assert end, written
        line, *fields = head.split(b"\r\n")
        version, status, _ = line.split(b" ", 2)
        assert version == b"HTTP/1.1"
        pairs = [field.partition(b": ")[::2] for field in fields]
        headers = dict(pairs)
        assert len(headers) == len(fields), fields
        if status == b"100":
            found.append(Reply(100, headers, b""))
            written = rest
            continue
        number = sum(reply.status != 100 for reply in found)
        method = methods[number] if number < len(methods) else ""
        if method == "HEAD" or status == b"204":
            body = b""
        elif headers.get(b"transfer-encoding") == b"chunked":
            body, rest = _dechunk(rest)
        elif b"content-length" in headers:
            length = int(headers[b"content-length"])
            assert len(rest) >= length
            body, rest = rest[:length], rest[length:]
        else:
            assert headers[b"connection"] == b"close"
            body, rest = rest, b""
        found.append(Reply(int(status), headers, body))
        written = rest
    return found


def _dechunk(data: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        size, end, data = data.partition(b"\r\n")
        assert end
        length = int(size, 16)
        assert data[length : length + 2] == b"\r\n"
        body, data = body + data[:length], data[length + 2 :]
        if length == 0:
            return body, data
