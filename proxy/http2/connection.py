"""One HTTP/2 client connection: its transport, its deadlines, what is written when.

Frames are the engine's (`core/http2`), streams are in `http2/streams.py`, an answer in
`http2/exchange.py`, and what is due when is decided in `http2/life.py`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from core.exchange import Handshake, Header, Request
from core.http2.engine import EngineOptions, ErrorCode
from core.http2.engines import EngineName, make_engine
from core.http2.guard import FrameGuard
from proxy.flow import NEVER
from proxy.http2.exchange import Http2Exchange
from proxy.http2.life import PING_AFTER_S, Life, Step
from proxy.http2.streams import Http2Streams
from proxy.tls.session import TlsSession, handshake_of, tls_session
from proxy.turns import LARGE_READ_BYTES

if TYPE_CHECKING:
    from proxy.listen.listener import Listener

_WRITE_BYTES = 65_536
"""At most about so much is handed to the transport at a time, so that what a small stream says
next need not wait behind all that a large one has to say."""
_LINGER_S = 1.0  # for the last words to a client that broke a rule


class Http2Connection(asyncio.Protocol):
    """States: open, retiring (no new streams), closing."""

    def __init__(
        self, listener: Listener, peer: str, engine: EngineName, arrived_at: float | None = None
    ) -> None:
        """`arrived_at`: when it was accepted, if it has TLS."""
        self._arrived_at = arrived_at
        self._handshake: Handshake | None = None
        self.now = now = listener.now()
        self.deadline_at = NEVER
        self.due = False  # a flush is to come
        self.writing_paused = False
        self._listener = listener
        self._peer = peer
        self._transport: asyncio.Transport | None = None
        self._session: TlsSession | None = None
        self._closing = False
        self._sent = 0
        self._unread = 0  # bytes in the transport's buffer at the last look
        self._write_by = NEVER
        self._life = Life(listener.timeouts, now, random.random())
        limits = listener.limits
        self._guard = FrameGuard(max_header_bytes=limits.max_header_bytes, now=now)
        self._streams = Http2Streams(self, listener, self._guard, peer)
        options = EngineOptions(
            "server",
            max_streams=limits.max_streams,
            max_header_bytes=limits.max_header_bytes,
        )
        self._engine = self._streams.engine = make_engine(engine, self._streams, options)
        self.send: Callable[[int, bytes], object] = self._engine.send
        self.respond: Callable[[int, Sequence[Header], bool], None] = self._engine.respond

    def __repr__(self) -> str:
        return f"<Http2Connection peer={self._peer} {self._life!r} {self._streams!r}>"

    @property
    def date(self) -> Header:
        return b"date", self._listener.date[6:-2]

    # --- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's transports are no subclass of asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=65_536)
        if self._arrived_at is not None:
            self._handshake = handshake_of(transport, self._listener.now() - self._arrived_at)
        self._listener.opened(self, self._peer)
        self.deadline_at = self._life.next_at()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.closed(self, self._peer)
        self._closing = True
        self.deadline_at = NEVER
        self._streams.drop_all()

    def eof_received(self) -> bool:
        return False  # a client that closes its side has left

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self.now = now = self._listener.now()
        self._life.heard(now)
        if self._guard.feed(data, now, self._sent):
            self.due = True  # whatever the engine's news lead to is flushed below
            self._engine.receive(data)
        if self._guard.exceeded:
            self._listener.http2_floods.labels(self._guard.exceeded).inc()
            self._end(self._guard.code)
            return
        if self._guard.block_since:
            self.look_by(self._guard.block_since + self._listener.timeouts.head_s)
        self._flush()
        if len(data) >= LARGE_READ_BYTES and self._transport is not None and not self._closing:
            self._listener.read_turns.take(self._transport)

    def pause_writing(self) -> None:
        self.writing_paused = True
        self._unread = self._transport.get_write_buffer_size() if self._transport else 0
        self._write_by = self._listener.now() + self._listener.timeouts.write_idle_s
        self.look_by(self._write_by)
        self._streams.pause()

    def resume_writing(self) -> None:
        self.writing_paused = False
        self._write_by = NEVER
        if self._closing:
            return
        self._life.heard(self._listener.now())  # it was not asked meanwhile
        self._flush()
        self._streams.resume()

    def on_deadline(self, now: float) -> None:
        if self._closing:
            self._abort()
            return
        self.now = now
        block_by = NEVER  # nothing else can arrive until the header block is whole
        if self._guard.block_since:
            block_by = self._guard.block_since + self._listener.timeouts.head_s
        if now >= block_by:
            self._end(ErrorCode.ENHANCE_YOUR_CALM)
            return
        if self.writing_paused:
            self._on_slow_reader(now)
            return
        step = self._life.due(now)
        if step is not None:
            self._take(step)
        if self._closing:
            return
        streams_at = self._streams.check(now)
        self.deadline_at = min(streams_at, self._life.next_at(), block_by)
        self._flush()

    def _on_slow_reader(self, now: float) -> None:
        """A client that takes some of what waits for it is slow; one that takes nothing is gone."""
        waiting = self._transport.get_write_buffer_size() if self._transport else 0
        if now >= self._write_by:
            if waiting >= self._unread:
                self._abort()
                return
            self._unread = waiting
            self._write_by = now + self._listener.timeouts.write_idle_s
        self.deadline_at = self._write_by

    # --- its streams' calls

    def admit(self, request: Request) -> None:
        """Raises the GatewayError that refuses a request over this connection."""
        if self._handshake is not None:
            request.handshake, self._handshake = self._handshake, None
        tls = self._listener.tls
        if tls is None or tls.rules is None or self._transport is None:
            return
        if self._session is None:
            self._session = tls_session(self._transport)
        self._listener.admit(self._session, request)

    def began(self, fragile: bool) -> None:
        life = self._life
        life.began(self.now)
        life.fragile = life.fragile or fragile
        if life.wanted or not self._listener.keep_alive:
            self.retire()
        self.look_by(self.now + PING_AFTER_S)

    def look_by(self, at: float) -> None:
        self.deadline_at = min(self.deadline_at, at)

    def settings_came(self) -> None:
        self._life.settings(self.now)

    def settings_answered(self) -> None:
        self._life.settings_answered()

    def ping_answered(self) -> None:
        if self._life.retiring:
            self._take(Step.LAST)

    def flush_soon(self, exchange: Http2Exchange) -> None:
        """What all streams say in one pass of the loop goes out together; no pass is waited for,
        and not even its end by the only stream."""
        if self.writing_paused:
            if exchange.source is not None:
                exchange.source.pause_reading()
            return
        if self._streams.single:
            self._flush()
            return
        self.due = True
        self._listener.loop.call_soon(self._flush)

    def end(self, exchange: Http2Exchange, data: bytes | None) -> None:
        if data is not None:
            self._engine.send(exchange.stream_id, data, True)
        self._streams.ended(exchange)
        if not self.due:
            self.flush_soon(exchange)

    def cut(self, exchange: Http2Exchange) -> None:
        """A reset: the SDKs take a clean end without `[DONE]` for success."""
        self._streams.ended(exchange, ErrorCode.INTERNAL_ERROR)
        if not self.due:
            self.flush_soon(exchange)

    # --- the end

    @property
    def idle(self) -> bool:
        return not self._streams

    @property
    def fresh(self) -> bool:
        return False  # its client is told to go in two steps, and may ask in between

    def shut_idle(self) -> None:
        """Take no more streams, and close as soon as none is left; asked again, wait no longer
        for the client's answer."""
        if self._closing:
            return
        self.now = self._listener.now()
        again = self._life.wanted
        self.retire()
        if again and not self._streams:
            self._take(Step.LAST)
        self._flush()

    def retire(self) -> None:
        """The first step, now or as soon as it can be taken: say that no new streams are wanted,
        and wait until the client heard."""
        self._life.wanted = True
        if self._life.may_retire:
            self.look_by(self._life.noticed(self.now))
            self._engine.shutdown_notice()
            self._engine.ping()

    def _take(self, step: Step) -> None:
        if step is Step.NOTICE:
            self.retire()
        elif step is Step.LAST:
            if not self._life.finished:
                self._life.finished = True
                self._engine.goaway()
        elif step is Step.PING:
            self._life.pinged(self.now)
            self._engine.ping()
        elif step is Step.DEAD:
            self._abort()
        else:
            self._end(ErrorCode.SETTINGS_TIMEOUT)

    def _end(self, code: ErrorCode) -> None:
        """The client broke a rule, or was too much."""
        self._streams.taking = False
        self._streams.drop_all()
        self._engine.goaway(code)
        self._flush()
        self._close()
        self.deadline_at = self._listener.now() + _LINGER_S

    def _flush(self) -> None:
        """Write what may be written now."""
        self.due = False
        if self.writing_paused or self._closing or self._transport is None:
            return
        engine, streams = self._engine, self._streams
        data = engine.outgoing(_WRITE_BYTES)
        if data:
            self._sent += len(data)
            self._transport.write(data)
        if streams.unsettled or engine.blocked or engine.over or len(data) >= _WRITE_BYTES:
            self._settle(len(data))

    def _settle(self, written: int) -> None:
        """After a write: what has ended, and whether there is more to write."""
        streams = self._streams
        more = streams.settle()
        if self._engine.over:
            streams.drop_all()
            self._close()
        elif (more or written >= _WRITE_BYTES) and not (self.writing_paused or self.due):
            self.due = True
            self._listener.loop.call_soon(self._flush)
        elif not streams and self._life.busy:
            self.now = self._listener.now()
            self.look_by(self._life.idle(self.now))
            if self._life.may_retire:
                self.retire()
                self._flush()

    def _close(self) -> None:
        """Flush what was written, then close; a peer that does not read is cut off."""
        if self._transport is not None and not self._closing:
            self._closing = True
            self.deadline_at = self._listener.now() + self._listener.timeouts.write_idle_s
            self._transport.close()

    def _abort(self) -> None:
        self._closing = True
        self.deadline_at = NEVER
        self._streams.drop_all()
        if self._transport is not None:
            self._transport.abort()
