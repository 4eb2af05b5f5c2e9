"""A socket that speaks HTTP/2 to a replica: one connection, many streams.

The path of a chunk is: the transport calls `data_received`, the engine calls
`Http2Streams.on_data`, the stream's handler gets the bytes. The transport is never paused: a slow
client's stream is held up by its own window.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from backend.framing import HEAD_BYTES
from backend.http2_liveness import Liveness, Verdict
from backend.http2_stream import Http2Stream
from backend.http2_streams import Http2Streams
from backend.request_head import Http2RequestHead
from core.errors import UpstreamError, UpstreamProtocolError, UpstreamUnreachable
from core.exchange import Header
from core.http2.engine import Engine, ErrorCode, Http2Handler

WRITE_BYTES = 64 * 1024
"""So much is handed to the transport at a time, from all streams in turn."""
WRITE_HIGH_BYTES = 256 * 1024
LINGER_S = 1.0
"""How long the last bytes of a connection may take to leave."""


class Http2Owner(Protocol):
    """The pool, as a connection sees it."""

    def changed(self, protocol: Http2Protocol) -> None:
        """Its `room` may be another, or its last stream has ended."""

    def lost(self, protocol: Http2Protocol) -> None:
        """The socket is closed. Called once."""


class Http2Protocol(asyncio.Protocol):
    """One connection. `opened` is done once it is usable: the replica's settings have arrived.

    `idle_at` is the monotonic instant since which nothing is taken (written by the pool).
    """

    def __init__(
        self, owner: Http2Owner, head: Http2RequestHead, engine: Callable[[Http2Handler], Engine]
    ) -> None:
        self._owner = owner
        self._head = head
        self._streams = Http2Streams(self, engine)
        self._engine = self._streams.engine
        self._transport: asyncio.Transport | None = None
        self._liveness = Liveness()
        self._heard = 0  # reads
        self._inside = False  # of the engine: what is to be sent goes out afterwards
        self._congested = False
        self._doubted = False
        self._leaving = False
        self._progress = 0
        self._silent_bytes = 0
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.opened.add_done_callback(_retrieve)  # whoever opened it may be gone
        self.closed = False
        self.idle_at = 0.0

    def __repr__(self) -> str:
        return f"<Http2Protocol {'closed' if self.closed else 'open'} {self._streams}>"

    # --- the pool's side

    @property
    def room(self) -> int:
        """How many more streams it takes now."""
        if self.closed or self._doubted or self._congested or not self.opened.done():
            return 0
        return self._streams.room

    @property
    def draining(self) -> bool:
        """It takes no new streams, and should be closed after its last one."""
        return self._streams.draining

    @property
    def taken(self) -> int:
        """How many holds on it are not over."""
        return self._streams.taken

    @property
    def served(self) -> int:
        """How many responses were complete."""
        return self._streams.served

    @property
    def progress(self) -> int:
        """Grows while any stream of it flows."""
        return self._streams.progress

    @property
    def streams(self) -> list[Http2Stream]:
        """Those that were begun and are not over."""
        return self._streams.all

    def take(self, replica_id: str) -> Http2Stream:
        """A place for one exchange, which must end by its response or by `abort`."""
        self._streams.taken += 1
        return Http2Stream(self, replica_id)

    def check(self, now: float, silent_s: float) -> None:
        """To be called once a second: find out whether the replica is still there."""
        self._silent_bytes = 0
        if self.closed or not self.opened.done():
            return
        verdict = self._liveness.check(self._heard, now, silent_s)
        doubted, self._doubted = self._doubted, verdict is Verdict.DOUBTED
        if verdict is Verdict.ASK:
            self._engine.ping()
            self._flush()
        elif verdict is Verdict.DEAD:
            self._lose("the replica does not answer on this connection")
            self.abort()
        elif doubted and not self._doubted:
            self._owner.changed(self)

    def leave(self) -> None:
        """Take no new streams; close politely, if none is left."""
        self._streams.draining = True
        if not self.taken and not self._leaving and not self.closed:
            self._leaving = True
            self._engine.goaway()
            self._flush()

    def abort(self) -> None:
        """Close the socket at once; whoever has a stream hears so."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def fail(self, stream: Http2Stream, error: UpstreamError) -> None:
        """Give up one stream and tell its handler."""
        self._streams.fail(stream, error)
        self._flush()

    # --- a stream's side

    def begin(
        self,
        stream: Http2Stream,
        method: bytes,
        path: bytes,
        headers: Sequence[Header],
        body: bytes,
    ) -> None:
        """Send one request. On a lost connection the handler hears so in the next loop tick."""
        fields = self._head.build(method, path, headers, body)
        if self.closed or not self._streams.begin(stream, fields, body):
            asyncio.get_running_loop().call_soon(self._streams.never_sent, stream)
            return
        self._flush()

    def cancel(self, stream: Http2Stream, held: int) -> None:
        self._streams.cancel(stream, held)
        self._flush()

    def consumed(self, stream_id: int, size: int) -> None:
        self._engine.consumed(stream_id, size)
        self._flush()

    # --- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(WRITE_HIGH_BYTES)
        self._flush()

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        engine = self._engine
        self._heard += 1
        self._inside = True
        engine.receive(data)
        self._inside = False
        if self._progress != self._streams.progress:
            self._progress = self._streams.progress
            self._silent_bytes = 0
        else:
            self._count_silent(len(data))
        if engine.pending or engine.over:
            self._flush()

    def pause_writing(self) -> None:
        self._congested = True

    def resume_writing(self) -> None:
        self._congested = False
        self._flush()
        self._owner.changed(self)

    def eof_received(self) -> None:
        self._lose("the replica closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose("the connection to the replica was lost")
        self._owner.lost(self)

    # --- the streams' side

    def settled(self) -> None:
        if not self.opened.done():
            self.opened.set_result(None)

    def changed(self) -> None:
        self._owner.changed(self)

    # --- inside

    def _flush(self) -> None:
        """Send what there is to send. While the engine speaks to us, it waits for the end of that;
        and what the engine says while it hands out bytes may bring more to send."""
        transport = self._transport
        if self._inside or self.closed or transport is None:
            return
        engine = self._engine
        self._inside = True
        while engine.pending and not self._congested and (data := engine.outgoing(WRITE_BYTES)):
            transport.write(data)
        self._inside = False
        if engine.over:
            self._break()

    def _count_silent(self, size: int) -> None:
        """Bound what arrives in a second without a response's head or body: interim responses,
        PINGs, SETTINGS, empty frames, trailers."""
        self._silent_bytes += size
        if self._silent_bytes > HEAD_BYTES:
            self._engine.goaway(ErrorCode.ENHANCE_YOUR_CALM)

    def _lose(self, what: str) -> None:
        """The connection is gone, and its streams with it."""
        self.closed = True
        if not self.opened.done():
            said = "The replica closed the connection at once."
            self.opened.set_exception(UpstreamUnreachable(said))
        self._streams.fail_all(lambda stream: stream.lost(what))

    def _break(self) -> None:
        """The engine ended the connection: a rule was broken, or a GOAWAY took effect."""
        self._close()
        if not self.opened.done():
            self.opened.set_exception(UpstreamProtocolError("The replica does not speak HTTP/2."))
        said = "the replica broke the rules of HTTP/2"
        self._streams.fail_all(lambda _: UpstreamProtocolError(said))

    def _close(self) -> None:
        """Close when the last bytes have left, but do not wait for long."""
        self.closed = True
        transport = self._transport
        if transport is not None:
            transport.close()
            asyncio.get_running_loop().call_later(LINGER_S, transport.abort)


def _retrieve(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()
