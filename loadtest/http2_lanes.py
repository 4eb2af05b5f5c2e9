"""Connections by HTTP/2 with many requests at a time, each on a lane of its own. Performs.

Frames are those of libnghttp2. What was read is told to it as consumed at once, or later by a slow
reader: then the stream's window shuts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

import ngh2
from ngh2 import events

from loadtest.answer_reader import Answer
from loadtest.lanes import (
    Ask,
    ConnectError,
    Exchange,
    Target,
    keep_session,
    open_connection,
    tls_of,
)
from loadtest.record import Opening

_WINDOW = 1 << 24  # of a connection: its streams have the usual 65,535 bytes
_CANCEL, _REFUSED = 0x8, 0x7  # RFC 9113 section 7
_OPTIONS = ngh2.Configuration(auto_window_update=False)


class Http2Lane:
    """A place on a connection."""

    def __init__(self, connection: Http2Connection, used: bool) -> None:
        self._connection = connection
        self.exchange: Exchange | None = None
        self.stream_id = 0
        self.used = used

    def __repr__(self) -> str:
        return f"<Http2Lane {self.stream_id} {self.exchange!r}>"

    @property
    def connection(self) -> Http2Connection:
        return self._connection

    def ask(self, ask: Ask, exchange: Exchange) -> None:
        self.exchange = exchange
        exchange.reader = Answer(exchange.keep_text)
        exchange.sent_at = time.perf_counter()
        self._connection.request(self, ask)
        if exchange.leave_after == 0:
            asyncio.get_running_loop().call_soon(self.leave)

    def leave(self) -> None:
        exchange = self.exchange
        if exchange is not None:
            exchange.left = True
            self.drop()
            exchange.ended(exchange)

    def drop(self) -> None:
        self.exchange = None
        self._connection.cancel(self)

    def end(self) -> None:
        """The answer has ended."""
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.ended(exchange)


class Http2Connection(asyncio.Protocol):
    """`places`: lanes that were handed out and not given back."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._engine = ngh2.Connection(ngh2.Role.CLIENT, _OPTIONS)
        self._streams: dict[int, Http2Lane] = {}
        self._flushing = False
        self.places = 0
        self.used = False
        self.open = True

    def __repr__(self) -> str:
        return f"<Http2Connection {len(self._streams)} streams open={self.open}>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._engine.initiate_connection({ngh2.Setting.ENABLE_PUSH: 0})
        self._engine.set_local_window_size(_WINDOW)
        self._flush()

    @property
    def speaks_http2(self) -> bool:
        """In clear text that is taken for granted (RFC 9113 section 3.3)."""
        tls = tls_of(self._transport)
        return tls is None or tls.selected_alpn_protocol() == "h2"

    def request(self, lane: Http2Lane, ask: Ask) -> None:
        self.used = True
        try:
            lane.stream_id = self._engine.send_request(ask.http2(self._target))
            self._engine.send_data(lane.stream_id, ask.body, end_stream=True)
        except ngh2.NGH2Error as error:
            assert lane.exchange is not None
            lane.exchange.reader.fail("reset", str(error))
            self._loop.call_soon(lane.end)
            return
        self._streams[lane.stream_id] = lane
        self._later()

    def cancel(self, lane: Http2Lane) -> None:
        if self._streams.pop(lane.stream_id, None) is not None and self.open:
            self._engine.reset_stream(lane.stream_id, _CANCEL)
            self._later()

    def give_back(self, keep: bool) -> None:
        self.places -= 1
        if self.open:
            keep_session(self._target, self._transport)
            if not keep and not self.places:
                self.close()

    def close(self) -> None:
        self.open = False
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        try:
            self._engine.receive_data(data)
        except ngh2.NGH2Error as error:
            self._over("protocol", str(error))
            return
        for event in self._engine.events():
            self._on(event, now)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        self._over("", "")

    def _on(self, event: object, now: float) -> None:
        if isinstance(event, events.DataReceived):
            self._on_data(event.stream_id, event.data, now)
        elif isinstance(event, events.ResponseReceived):
            lane = self._streams.get(event.stream_id)
            if lane is not None and lane.exchange is not None:
                lane.exchange.untouched = False
                reader = lane.exchange.reader
                for name, value in event.headers:
                    if name == b":status":
                        reader.status = int(value)
                    else:
                        reader.on_field(name, value)
        elif isinstance(event, events.StreamClosed):
            self._on_closed(event.stream_id, int(event.error_code))
        elif isinstance(event, events.GoAwayReceived):
            self.open = False  # for new requests; what runs goes on
        elif isinstance(event, events.ConnectionClosed):
            self._transport.close()

    def _on_data(self, stream_id: int, data: bytes, now: float) -> None:
        lane = self._streams.get(stream_id)
        exchange = lane.exchange if lane is not None else None
        pause_s = exchange.pause_s if exchange is not None else 0.0
        if pause_s:
            self._loop.call_later(pause_s, self._consumed, stream_id, len(data))
        else:
            self._consumed(stream_id, len(data))
        if exchange is not None:
            exchange.reader.now = now
            exchange.reader.on_body(data)
            if exchange.has_enough():
                assert lane is not None
                lane.leave()

    def _on_closed(self, stream_id: int, code: int) -> None:
        lane = self._streams.pop(stream_id, None)
        if lane is None or lane.exchange is None:
            return
        reader = lane.exchange.reader
        if code == 0:
            reader.end(keep_alive=True)
        else:
            if code != _REFUSED:
                lane.exchange.untouched = False
            reader.fail("reset", f"the stream was reset with code {code}")
            reader.complete = True
        lane.end()

    def _consumed(self, stream_id: int, size: int) -> None:
        try:
            self._engine.acknowledge_received_data(size, stream_id)
        except (ngh2.NGH2Error, ValueError):
            return  # the stream or the connection has ended meanwhile
        self._later()

    def _over(self, problem: str, detail: str) -> None:
        streams, self._streams = self._streams, {}
        for lane in streams.values():
            if lane.exchange is not None:
                if problem:
                    lane.exchange.reader.fail(problem, detail)
                lane.exchange.reader.lost()
                lane.end()
        if problem:
            self.close()

    def _later(self) -> None:
        """What many streams say in one turn of the loop is one write."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._transport.is_closing():
            return
        try:
            data = self._engine.data_to_send()
        except ngh2.NGH2Error as error:
            self._over("protocol", str(error))
            return
        if data:
            self._transport.write(data)


class Http2Lanes:
    """Connections to one target with up to so many `streams` each."""

    def __init__(
        self, target: Target, reuse: bool, opened: Callable[[Opening], None], streams: int
    ) -> None:
        self._target = target
        self._reuse = reuse
        self._opened = opened
        self._streams = streams
        self._connections: list[Http2Connection] = []
        self._coming: asyncio.Future[Http2Connection] | None = None
        self._waiting = 0

    def __repr__(self) -> str:
        return f"<Http2Lanes to {self._target.authority} {len(self._connections)}>"

    def take(self) -> Http2Lane | None:
        """On the newest connection with room, if old ones may be used again."""
        for connection in reversed(self._connections):
            fresh = self._reuse or not connection.used or self._streams > 1
            if connection.open and connection.places < self._streams and fresh:
                return self._place(connection)
        self._connections = [each for each in self._connections if each.open or each.places]
        return None

    def _place(self, connection: Http2Connection) -> Http2Lane:
        lane = Http2Lane(connection, connection.used)
        connection.places += 1
        return lane

    def give_back(self, lane: Http2Lane) -> None:
        lane.connection.give_back(self._reuse)

    async def connect(self) -> Http2Lane:
        """ConnectError. Those who come while a connection is opened share it, as many as may."""
        coming = self._coming
        if coming is None or self._waiting >= self._streams:
            coming = self._coming = asyncio.ensure_future(self._open())
            coming.add_done_callback(self._came)
            self._waiting = 0
        self._waiting += 1
        return self._place(await asyncio.shield(coming))

    def _came(self, coming: asyncio.Future[Http2Connection]) -> None:
        if self._coming is coming:
            self._coming = None
        if not coming.cancelled():
            coming.exception()  # those who wait are told; nobody may wait any more

    async def _open(self) -> Http2Connection:
        target = self._target
        made = await open_connection(target, lambda: Http2Connection(target), self._opened)
        if not made.speaks_http2:
            made.close()
            raise ConnectError("tls", "the server does not speak HTTP/2")
        self._connections.append(made)
        return made

    def close(self) -> None:
        if self._coming is not None:
            self._coming.cancel()
        for connection in self._connections:
            if connection.open:
                connection.close()
