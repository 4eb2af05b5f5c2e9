"""The load client's HTTP/2: lanes that are streams of connections, so many to each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from core.exchange import Header
from core.http2.engine import EngineOptions
from core.http2.engines import make_engine

if TYPE_CHECKING:
    from bench.client import Target

FIRST_TOKEN = b'"content":" '
_OPTIONS = EngineOptions("client", stream_window=2**24, connection_window=2**30)


class Connection(asyncio.Protocol):
    """One connection; tells its lanes what comes."""

    def __init__(self) -> None:
        self.engine = make_engine("nghttp2", self, _OPTIONS)
        self.streams: dict[int, Http2Lane] = {}
        self.leaving = False
        self._transport: asyncio.Transport
        self._due = False
        self._loop = asyncio.get_running_loop()

    def __repr__(self) -> str:
        return f"<Connection {len(self.streams)} streams>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.leaving = True
        for lane in list(self.streams.values()):
            lane.end(f"connection lost: {exc!r}")

    def data_received(self, data: bytes) -> None:
        self._due = True
        self.engine.receive(data)
        self._flush()
        if self.engine.over:
            self._transport.close()

    def request(self, lane: Http2Lane, headers: Sequence[Header], body: bytes) -> None:
        stream_id = self.engine.request(headers, end_stream=False)
        self.streams[stream_id] = lane
        self.engine.send(stream_id, body, True)
        if not self._due:
            self._due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._due = False
        if data := self.engine.outgoing():
            self._transport.write(data)

    # --- what the engine tells

    def on_head(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None:
        if headers[0] != (b":status", b"200"):
            self.streams.pop(stream_id).end(f"{headers!r}")

    def on_data(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        self.engine.consumed(stream_id, len(data))
        lane = self.streams.get(stream_id)
        if lane is None:
            return
        if end_stream:
            del self.streams[stream_id]
        lane.received(data, end_stream)

    def on_trailers(self, stream_id: int) -> None:
        self.streams.pop(stream_id).end("trailers")

    def on_reset(self, stream_id: int, code: int, by_peer: bool) -> None:
        lane = self.streams.pop(stream_id, None)
        if lane is not None:
            lane.end(f"reset with code {code}")

    def on_goaway(self, last_stream_id: int, code: int) -> None:
        self.leaving = True

    def on_writable(self, stream_id: int) -> None: ...

    def on_ping_answered(self) -> None: ...

    def on_settings(self) -> None: ...

    def on_settings_answered(self) -> None: ...


class Seats:
    """The current connection of up to so many lanes. When a server wants no more streams on it,
    the next one is opened, and requests wait for that."""

    def __init__(self, target: Target, connection: Connection) -> None:
        self._target = target
        self._connection = connection
        self._waiting: list[Callable[[], None]] = []
        self._opening: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Seats {self._connection!r} {len(self._waiting)} wait>"

    def request(self, lane: Http2Lane, headers: Sequence[Header], body: bytes) -> None:
        if not self._connection.leaving:
            self._connection.request(lane, headers, body)
            return
        self._waiting.append(lambda: self._connection.request(lane, headers, body))
        if len(self._waiting) == 1:
            self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        self._connection = await self._target.connect_http2()
        waiting, self._waiting = self._waiting, []
        for begin in waiting:
            begin()


class Http2Lane:
    """Like `bench.client.Lane`: one request at a time; `ended` is told when it is over."""

    def __init__(self, target: Target, seats: Seats) -> None:
        self._target = target
        self._seats = seats
        self._tail = b""
        self._sent_at = 0.0
        self.reads = 0
        self.ttft_s = 0.0
        self.failed = ""
        self.lost = False
        self.ended: Callable[[Http2Lane], None] = lambda lane: None
        self.kept: list[bytes] | None = None

    def __repr__(self) -> str:
        return f"<Http2Lane failed={self.failed!r}>"

    def send(self, tokens: int) -> None:
        headers, body = self._target.http2_request(tokens)
        self._tail, self.ttft_s = b"", 0.0
        self._sent_at = time.perf_counter()
        self._seats.request(self, headers, body)

    def received(self, data: bytes, end_stream: bool) -> None:
        self.reads += 1
        if self.kept is not None:
            self.kept.append(data)
        if not self.ttft_s and FIRST_TOKEN in data:
            self.ttft_s = time.perf_counter() - self._sent_at
        tail = self._tail = (self._tail + data)[-64:]
        if end_stream:
            self.end("" if b"data: [DONE]" in tail and self.ttft_s else f"bad end: {tail!r}")

    def end(self, failed: str) -> None:
        self.failed = failed
        self.ended(self)
