"""Two HTTP/2 engines, client and server, joined in memory."""

from __future__ import annotations

from collections.abc import Sequence

from core.exchange import Header
from core.http2.engine import Engine, EngineOptions
from core.http2.engines import EngineName, make_engine

REQUEST: list[Header] = [
    (b":method", b"POST"),
    (b":scheme", b"https"),
    (b":authority", b"localhost"),
    (b":path", b"/v1/chat/completions"),
    (b"content-type", b"application/json"),
]
OK: list[Header] = [(b":status", b"200"), (b"content-type", b"text/event-stream")]


class Recorder:
    """A handler that keeps what it is told. `consuming`: opens the windows at once."""

    def __init__(self, *, consuming: bool = True) -> None:
        self.consuming = consuming
        self.engine: Engine | None = None
        self.heads: dict[int, list[Header]] = {}
        self.bodies: dict[int, bytes] = {}
        self.data_calls = 0
        self.ended: set[int] = set()
        self.trailers: list[int] = []
        self.resets: list[tuple[int, int, bool]] = []
        self.writable: list[int] = []
        self.pings_answered = 0
        self.settings = 0
        self.settings_answered = 0
        self.goaways: list[tuple[int, int]] = []

    def on_head(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None:
        assert stream_id not in self.heads
        self.heads[stream_id] = [(name, value) for name, value in headers]
        self.bodies[stream_id] = b""
        if end_stream:
            self.ended.add(stream_id)

    def on_data(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        self.bodies[stream_id] += data
        self.data_calls += 1
        if self.consuming and self.engine is not None and data:
            self.engine.consumed(stream_id, len(data))
        if end_stream:
            self.ended.add(stream_id)

    def on_trailers(self, stream_id: int) -> None:
        self.trailers.append(stream_id)
        self.ended.add(stream_id)

    def on_reset(self, stream_id: int, code: int, by_peer: bool) -> None:
        self.resets.append((stream_id, code, by_peer))

    def on_writable(self, stream_id: int) -> None:
        self.writable.append(stream_id)

    def on_ping_answered(self) -> None:
        self.pings_answered += 1

    def on_settings(self) -> None:
        self.settings += 1

    def on_settings_answered(self) -> None:
        self.settings_answered += 1

    def on_goaway(self, last_stream_id: int, code: int) -> None:
        self.goaways.append((last_stream_id, code))


class Pair:
    """`client` and `server` are the engines, `at_client` and `at_server` their handlers."""

    def __init__(
        self,
        client: EngineName,
        server: EngineName,
        *,
        client_options: EngineOptions | None = None,
        server_options: EngineOptions | None = None,
    ) -> None:
        self.at_client, self.at_server = Recorder(), Recorder()
        self.client = make_engine(client, self.at_client, client_options or EngineOptions("client"))
        self.server = make_engine(server, self.at_server, server_options or EngineOptions("server"))
        self.at_client.engine, self.at_server.engine = self.client, self.server
        self.pump()

    def pump(self) -> None:
        """Pass bytes on until both have nothing to say."""
        for _ in range(10_000):
            to_server, to_client = self.client.outgoing(), self.server.outgoing()
            if not to_server and not to_client:
                return
            if to_server:
                self.server.receive(to_server)
            if to_client:
                self.client.receive(to_client)
        raise AssertionError("they never stop talking")
