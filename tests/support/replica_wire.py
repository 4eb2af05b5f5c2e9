"""Doubles for the two neighbours of a replica's socket: the transport and the reader."""

from __future__ import annotations

from collections.abc import Callable

from backend.http1_client import Connection
from backend.http1_protocol import Http1Protocol
from backend.request_head import RequestHead
from core.errors import UpstreamError
from core.exchange import Header


class Transport:
    """Records what is written; `unsent` plays a full socket buffer. As uvloop does, it looks up
    where reads go only when it is given a protocol."""

    def __init__(self) -> None:
        self.read: Callable[[bytes], None]
        self.written = b""
        self.writes = 0
        self.aborted = False
        self.reading = True
        self.unsent = 0

    def write(self, data: bytes) -> None:
        self.written += data
        self.writes += 1

    def set_protocol(self, protocol: Http1Protocol) -> None:
        assert not self.aborted, "set after close"
        self.read = protocol.data_received

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        assert self.reading, "paused twice"
        assert not self.aborted, "paused after close"
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading, "resumed twice"
        assert not self.aborted, "resumed after close"
        self.reading = True


class Reader:
    """A ResponseHandler that records, and checks the order it is promised."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[Header] = []
        self.reads: list[bytes] = []
        self.ended = False
        self.error: UpstreamError | None = None
        self.on_each_body: Callable[[], None] = lambda: None

    @property
    def body(self) -> bytes:
        return b"".join(self.reads)

    @property
    def over(self) -> bool:
        return self.ended or self.error is not None

    @property
    def progress(self) -> int:
        return self.status + len(self.body)

    def on_head(self, status: int, headers: list[Header]) -> None:
        assert not self.status
        assert not self.over
        self.status, self.headers = status, headers

    def on_body(self, data: bytes) -> None:
        assert self.status
        assert not self.over
        assert data
        self.reads.append(data)
        self.on_each_body()

    def on_end(self) -> None:
        assert self.status
        assert not self.over
        self.ended = True

    def on_failed(self, error: UpstreamError) -> None:
        assert not self.over
        self.error = error


class Wire:
    """A connected protocol with its double on either side; also its owner."""

    def __init__(self) -> None:
        self.transport = Transport()
        self.released_count = 0
        self.lost_count = 0
        self.protocol = Http1Protocol(self, RequestHead(b"replica:8000"))
        self.transport.set_protocol(self.protocol)
        self.protocol.connection_made(self.transport)  # type: ignore[arg-type]

    def released(self, protocol: Http1Protocol) -> None:
        assert protocol is self.protocol
        self.released_count += 1

    def lost(self, protocol: Http1Protocol) -> None:
        assert protocol is self.protocol
        self.lost_count += 1

    def request(self, method: bytes = b"POST") -> tuple[Connection, Reader]:
        connection, reader = Connection(self.protocol, "r"), Reader()
        connection.send(method, b"/v1/x", [], b"", reader)
        return connection, reader

    def feed(self, *pieces: bytes) -> None:
        """As a transport does: nothing more once it is closed."""
        for piece in pieces:
            if self.transport.aborted:
                return
            self.transport.read(piece)

    def hang_up(self, error: Exception | None = None) -> None:
        """The peer closes (`error` None) or resets."""
        if error is None and not self.transport.aborted:
            self.protocol.eof_received()
        self.transport.aborted = True
        self.protocol.connection_lost(error)
