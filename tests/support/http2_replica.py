"""An HTTP/2 server that does what a script says, and one that speaks for a fake replica."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import cast

import listening
from client import Client

from core.exchange import Header
from core.http2.engine import EngineOptions, ErrorCode
from core.http2.engines import EngineName, make_engine
from loadtest.replica import FakeReplica


class ServedStream:
    """One request at the server. `reset_code`: how the client reset it (None: not)."""

    def __init__(self, connection: ServedConnection, number: int, headers: Sequence[Header]):
        self.connection = connection
        self.id = number
        self.headers = [(name.decode(), value.decode()) for name, value in headers]
        self.body = b""
        self.complete = asyncio.Event()
        self.over = asyncio.Event()
        self.reset_code: int | None = None
        self.reset_at: float | None = None
        self.ended = False

    def __repr__(self) -> str:
        return f"<ServedStream {self.id} {self.fields.get(':path')}>"

    @property
    def fields(self) -> dict[str, str]:
        return dict(self.headers)

    async def whole_body(self) -> bytes:
        await self.complete.wait()
        return self.body

    def respond(self, status: int = 200, *headers: Header, end: bool = False) -> None:
        own = headers or ((b"content-type", b"text/event-stream"),)
        engine = self.connection.engine
        engine.respond(self.id, [(b":status", b"%d" % status), *own], end)
        self._sent(end)

    def write(self, data: bytes, end: bool = False) -> None:
        self.connection.engine.send(self.id, data, end)
        self._sent(end)

    def write_frames(self, frames: Sequence[bytes]) -> None:
        """Each as a frame of its own, all in one write."""
        connection, out = self.connection, b""
        for data in frames:
            connection.engine.send(self.id, data)
            out += connection.engine.outgoing()
        connection.write(out)

    def reset(self, code: int = ErrorCode.INTERNAL_ERROR) -> None:
        self.connection.engine.reset(self.id, code)
        self._sent(True)

    @property
    def waiting(self) -> int:
        """Bytes that the client's windows hold back."""
        return self.connection.engine.waiting(self.id)

    def _sent(self, end: bool) -> None:
        self.connection.flush()
        if end:
            self.ended = True
            self.over.set()


Script = Callable[[ServedStream], Awaitable[None]]


class ServedConnection(asyncio.Protocol):
    """One connection of the server."""

    def __init__(self, server: Http2Replica) -> None:
        self._server = server
        self._handling = False
        self.transport: asyncio.Transport
        self.streams: dict[int, ServedStream] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.engine = make_engine(server.engine, self, server.options)
        self.is_open = True
        self.pings_answered = 0
        self.goaways: list[tuple[int, int]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._server.connections.append(self)
        tls = transport.get_extra_info("ssl_object")
        self._server.resumed.append(tls.session_reused if tls is not None else False)
        self.flush()

    def data_received(self, data: bytes) -> None:
        self._handling = True
        self.engine.receive(data)
        self._handling = False
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        for stream in self.streams.values():
            stream.over.set()
        for task in self.tasks:
            task.cancel()

    def flush(self) -> None:
        if not self._handling and not self._server.mute:
            self.write(self.engine.outgoing())
            if self.engine.over:
                self.transport.close()

    def write(self, data: bytes) -> None:
        if data and self.is_open:
            self.transport.write(data)

    def abort(self) -> None:
        self.transport.abort()

    def open_streams(self) -> list[ServedStream]:
        return [stream for stream in self.streams.values() if not stream.over.is_set()]

    # --- the engine's side

    def on_head(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None:
        stream = self.streams[stream_id] = ServedStream(self, stream_id, headers)
        self._server.streams.append(stream)
        if end_stream:
            stream.complete.set()
        task = asyncio.ensure_future(self._play(stream))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _play(self, stream: ServedStream) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await self._server.script(stream)

    def on_data(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        stream = self.streams[stream_id]
        stream.body += data
        self.engine.consumed(stream_id, len(data))
        if end_stream:
            stream.complete.set()

    def on_trailers(self, stream_id: int) -> None:
        self.streams[stream_id].complete.set()

    def on_reset(self, stream_id: int, code: int, by_peer: bool) -> None:
        if (stream := self.streams.get(stream_id)) is not None:
            stream.reset_code = code
            stream.reset_at = asyncio.get_running_loop().time()
            stream.over.set()

    def on_writable(self, stream_id: int) -> None: ...

    def on_ping_answered(self) -> None:
        self.pings_answered += 1

    def on_settings(self) -> None: ...

    def on_settings_answered(self) -> None: ...

    def on_goaway(self, last_stream_id: int, code: int) -> None:
        self.goaways.append((last_stream_id, code))


class Http2Replica:
    """`async with Http2Replica(script) as server: ... server.url`.

    `script` plays each stream. `mute`: it accepts and reads, but never says anything, neither
    settings nor answers to PINGs. `streams` and `connections` are all that there ever were.
    """

    def __init__(
        self,
        script: Script,
        *,
        engine: EngineName = "nghttp2",
        tls: ssl.SSLContext | None = None,
        mute: bool = False,
        **options: int,
    ) -> None:
        self.script = script
        self.engine: EngineName = engine
        self.options = EngineOptions("server", **options)
        self.mute = mute
        self.connections: list[ServedConnection] = []
        self.streams: list[ServedStream] = []
        self.resumed: list[bool] = []
        self.port = 0
        self._tls = tls
        self._listener: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def open(self) -> int:
        """Connections that are open."""
        return sum(connection.is_open for connection in self.connections)

    def open_streams(self) -> list[ServedStream]:
        return [s for connection in self.connections for s in connection.open_streams()]

    def requests(self) -> list[ServedStream]:
        """Streams that are neither probes nor scrapes."""
        return [stream for stream in self.streams if stream.fields[":method"] == "POST"]

    async def __aenter__(self) -> Http2Replica:
        await self.listen()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._listener is not None:
            await listening.close(self._listener)
        for connection in self.connections:
            connection.abort()
        async with asyncio.timeout(20):
            while self.open:
                await asyncio.sleep(0.002)

    async def listen(self) -> None:
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: ServedConnection(self), "127.0.0.1", self.port, ssl=self._tls
        )
        self.port = self._listener.sockets[0].getsockname()[1]

    def stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None


def speaking_for(fake: FakeReplica) -> Script:
    """What `fake` answers over HTTP/1.1, over HTTP/2: whole or cut, and aborted when we are."""

    async def script(stream: ServedStream) -> None:
        body = await stream.whole_body()
        client = await Client.open(fake.port)
        leaving = asyncio.ensure_future(stream.over.wait())
        answering = asyncio.ensure_future(_answer(stream, client, body))
        try:
            await asyncio.wait([leaving, answering], return_when=asyncio.FIRST_COMPLETED)
        finally:
            client.close()
            for task in (leaving, answering):
                task.cancel()
            await asyncio.gather(leaving, answering, return_exceptions=True)

    return script


async def _answer(stream: ServedStream, client: Client, body: bytes) -> None:
    fields = stream.fields
    passed = {name: value for name, value in stream.headers if not name.startswith(":")}
    passed.pop("content-length", None)
    client.send(body, path=fields[":path"], method=fields[":method"], headers=passed)
    try:
        head = await client.head()
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, ValueError):
        stream.reset()
        return
    dropped = ("transfer-encoding", "connection", "keep-alive", "content-length")
    headers = [(n.encode(), v.encode()) for n, v in head.headers.items() if n not in dropped]
    length = head.headers.get("content-length")
    if length is not None:
        stream.respond(head.status, *headers)
        stream.write(await client.reader.readexactly(int(length)), end=True)
        return
    stream.respond(head.status, *headers)
    while chunk := await client.chunk():
        stream.write(chunk)
    if chunk is None:
        stream.reset()
    else:
        stream.write(b"", end=True)
