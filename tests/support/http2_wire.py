"""Streams to a replica in memory: between them and a server's engine there is no socket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from http2_pair import Recorder
from replica_wire import Reader

from backend.dialer import OPTIONS
from backend.http2_protocol import Http2Protocol
from backend.http2_stream import Http2Stream
from backend.http2_streams import Http2Streams
from backend.request_head import Http2RequestHead
from core.exchange import Header
from core.http2.engine import EngineOptions
from core.http2.engines import EngineName, make_engine

HEAD = Http2RequestHead(b"replica:8000", b"Bearer k")
SSE: list[Header] = [(b":status", b"200"), (b"content-type", b"text/event-stream")]


class StreamsWire:
    """`Http2Streams` and the server's engine; `at_server` is what the server was told.

    It stands where `Http2Protocol` stands, without its loop: bytes pass when `pump` is called.
    """

    def __init__(
        self,
        client: EngineName = "nghttp2",
        server: EngineName = "nghttp2",
        client_options: EngineOptions = OPTIONS,
        **options: int,
    ) -> None:
        self.changes = 0
        self.settlements = 0
        self.to_client: list[bytes] = []
        self.streams = Http2Streams(self, lambda h: make_engine(client, h, client_options))
        self.at_server = Recorder()
        self.server = make_engine(server, self.at_server, EngineOptions("server", **options))
        self.at_server.engine = self.server
        self.pump()

    def changed(self) -> None:
        self.changes += 1

    def settled(self) -> None:
        self.settlements += 1

    @property
    def served(self) -> int:
        return self.streams.served

    def begin(
        self,
        stream: Http2Stream,
        method: bytes,
        path: bytes,
        headers: Sequence[Header],
        body: bytes,
    ) -> None:
        if not self.streams.begin(stream, HEAD.build(method, path, headers, body), body):
            self.streams.never_sent(stream)

    def cancel(self, stream: Http2Stream, held: int) -> None:
        self.streams.cancel(stream, held)

    def consumed(self, stream_id: int, size: int) -> None:
        self.streams.engine.consumed(stream_id, size)

    def take(self) -> Http2Stream:
        self.streams.taken += 1
        return Http2Stream(self, "r")

    def request(self, body: bytes = b"{}") -> tuple[Http2Stream, Reader]:
        stream, reader = self.take(), Reader()
        stream.send(b"POST", b"/v1/x", [(b"x-a", b"b")], body, reader)
        self.pump()
        return stream, reader

    def pump(self) -> None:
        """Pass bytes on until both have nothing to say."""
        for _ in range(10_000):
            to_server, to_client = self.streams.engine.outgoing(), self.server.outgoing()
            if not to_server and not to_client:
                return
            if to_server:
                self.server.receive(to_server)
            if to_client:
                self.to_client.append(to_client)
                self.streams.engine.receive(to_client)
        raise AssertionError("they never stop talking")

    def answer(self, stream: Http2Stream, *parts: bytes, end: bool = True) -> None:
        self.server.respond(stream.id, SSE, False)
        for part in parts:
            self.server.send(stream.id, part)
        if end:
            self.server.send(stream.id, b"", True)
        self.pump()


class Http2Transport:
    """What `Http2Protocol` needs of a transport; what is written goes to a server's engine."""

    def __init__(self, server: EngineName = "nghttp2", **options: int) -> None:
        self.at_server = Recorder()
        self.server = make_engine(server, self.at_server, EngineOptions("server", **options))
        self.at_server.engine = self.server
        self.writes = 0
        self.closing = False
        self.aborted = False

    def write(self, data: bytes) -> None:
        assert not self.closing
        self.writes += 1
        self.server.receive(data)

    def set_write_buffer_limits(self, high: int) -> None: ...

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True


class ProtocolWire:
    """A connected `Http2Protocol`; also its owner. Needs a running loop."""

    def __init__(self, client: EngineName = "nghttp2", **options: int) -> None:
        self.changes = 0
        self.losses = 0
        self.transport = Http2Transport(**options)
        self.at_server = self.transport.at_server
        self.server = self.transport.server
        self.protocol = Http2Protocol(self, HEAD, lambda h: make_engine(client, h, OPTIONS))

    def changed(self, protocol: Http2Protocol) -> None:
        assert protocol is self.protocol
        self.changes += 1

    def lost(self, protocol: Http2Protocol) -> None:
        assert protocol is self.protocol
        self.losses += 1

    def open(self) -> ProtocolWire:
        self.protocol.connection_made(cast(object, self.transport))  # type: ignore[arg-type]
        self.pump()
        return self

    def pump(self) -> None:
        """What the server has to say, as long as it has."""
        while (data := self.server.outgoing()) and not self.transport.aborted:
            self.protocol.data_received(data)

    def request(self, body: bytes = b"{}") -> tuple[Http2Stream, Reader]:
        stream, reader = self.protocol.take("r"), Reader()
        stream.send(b"POST", b"/v1/x", [], body, reader)
        self.pump()
        return stream, reader
