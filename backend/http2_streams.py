"""The streams of one HTTP/2 connection to a replica, between its engine and their handlers. Pure.

A stream's fault ends that stream; only what is wrong with the connection itself ends them all. A
replica's bytes are not trusted more than a client's: see `framing`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from backend.framing import Refused, read_http2_head
from backend.http2_stream import Http2Stream
from core.errors import UpstreamError, UpstreamProtocolError, UpstreamReset
from core.exchange import Header
from core.http2.engine import Engine, ErrorCode, Http2Handler

MAX_STREAMS = 256
"""How many streams we open at once, whatever the replica allows."""
MAX_RESETS = 200
"""After so many cancelled streams a connection takes no more: many servers end one whose client
cancels a lot (CVE-2023-44487), and the other streams would go with it."""
LAST_STREAM_ID = 2**30
CONSUMED_BYTES = 32 * 1024
"""So many bytes of a stream are consumed at a time, a fraction of its window."""

_BY_RULE = frozenset(
    {
        ErrorCode.PROTOCOL_ERROR,
        ErrorCode.FLOW_CONTROL_ERROR,
        ErrorCode.STREAM_CLOSED,
        ErrorCode.FRAME_SIZE_ERROR,
        ErrorCode.COMPRESSION_ERROR,
    }
)
_log = logging.getLogger("headrace.backend")


class Connection(Protocol):
    """The socket, as its streams see it."""

    def changed(self) -> None:
        """There may be room for more streams, or none is left."""

    def settled(self) -> None:
        """The replica's settings have arrived."""


class Http2Streams:
    """What the engine is told and tells. After any call there may be something to send.

    `taken` counts the holds that were given out and are not over, `served` the complete responses,
    `progress` the heads and pieces of bodies. `draining`: no new streams.
    """

    def __init__(self, connection: Connection, engine: Callable[[Http2Handler], Engine]) -> None:
        self._connection = connection
        self._engine = engine(self)
        self._open: dict[int, Http2Stream] = {}
        self._resets = 0
        self.draining = False
        self.taken = 0
        self.served = 0
        self.progress = 0

    def __repr__(self) -> str:
        state = "draining" if self.draining else "open"
        return f"<Http2Streams {state}, {len(self._open)} of {self.taken}, served {self.served}>"

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def room(self) -> int:
        """How many more streams may be begun."""
        if self.draining:
            return 0
        return min(self._engine.max_streams, MAX_STREAMS) - self.taken

    @property
    def all(self) -> list[Http2Stream]:
        """Those that were begun and are not over."""
        return list(self._open.values())

    # --- the exchanges' side

    def begin(self, stream: Http2Stream, headers: Sequence[Header], body: bytes) -> bool:
        """Send a request; False when the connection takes none any more."""
        stream.id = self._engine.request(headers, not body)
        if not stream.id:
            self.draining = True
            return False
        self._open[stream.id] = stream
        if stream.id >= LAST_STREAM_ID:
            self.draining = True
        if body:
            self._engine.send(stream.id, body, True)
        return True

    def cancel(self, stream: Http2Stream, held: int) -> None:
        """The exchange is over, its handler hears nothing."""
        self.taken -= 1
        if self._open.pop(stream.id, None) is not None:
            self._engine.consumed(stream.id, held)
            self._engine.reset(stream.id, ErrorCode.CANCEL)
            self._resets += 1
            if self._resets >= MAX_RESETS:
                self.draining = True
        self._connection.changed()

    def fail(self, stream: Http2Stream, error: UpstreamError) -> None:
        """Give up one stream and tell its handler."""
        if self._open.pop(stream.id, None) is not None:
            self._engine.consumed(stream.id, stream.held)
            self._engine.reset(stream.id, ErrorCode.CANCEL)
            self._fail(stream, error)

    def never_sent(self, stream: Http2Stream) -> None:
        """`begin` did not succeed."""
        if stream.handler is not None:
            self._fail(stream, stream.lost("the connection was closed before the request"))

    def fail_all(self, error: Callable[[Http2Stream], UpstreamError]) -> None:
        """The connection is gone."""
        self.draining = True
        streams, self._open = self._open, {}
        for stream in streams.values():
            self._fail(stream, error(stream))

    # --- the engine's side

    def on_head(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None:
        self.progress += 1
        stream = self._open.get(stream_id)
        if stream is None or stream.handler is None:
            return
        stream.reads += 1
        try:
            status, fields = read_http2_head(tuple(headers))
        except Refused as error:
            said = f"the replica's response is not acceptable: {error}"
            self.fail(stream, UpstreamProtocolError(said))
            return
        try:
            stream.handler.on_head(status, list(fields))
        except Exception:  # noqa: BLE001 - its own exchange ends, not all that share the connection
            self._stumble(stream)
        if end_stream:
            self._end(stream)

    def on_data(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        stream = self._open.get(stream_id)
        if stream is None or stream.handler is None:
            self._engine.consumed(stream_id, len(data))
            return
        if data:
            self.progress += 1
            stream.reads += 1
            stream.held += len(data)
            try:
                stream.handler.on_body(data)
            except Exception:  # noqa: BLE001 - its own exchange ends, not all that share the connection
                self._stumble(stream)
            if stream.held >= CONSUMED_BYTES and not stream.paused:
                self._engine.consumed(stream_id, stream.held)
                stream.held = 0
        if end_stream:
            self._end(stream)

    def on_trailers(self, stream_id: int) -> None:
        stream = self._open.get(stream_id)
        if stream is not None:
            self._end(stream)

    def on_reset(self, stream_id: int, code: int, by_peer: bool) -> None:
        stream = self._open.pop(stream_id, None)
        if stream is None:
            return
        self._engine.consumed(stream_id, stream.held)
        error: UpstreamError
        if code == ErrorCode.REFUSED_STREAM:  # RFC 9113 section 8.7: nothing was done
            said = "the replica refused the stream"
            error = UpstreamReset(said, reused=stream.reused, answered=False)
        elif code in _BY_RULE or not by_peer:
            said = f"a response broke the rules of HTTP/2 ({_named(code)})"
            error = UpstreamProtocolError(said)
        else:
            said = f"the replica reset the stream ({_named(code)})"
            error = UpstreamReset(said, reused=False, answered=stream.reads > 0)
        self._fail(stream, error)

    def on_writable(self, stream_id: int) -> None:
        """Nobody waits for this: a request's body is handed over whole."""

    def on_ping_answered(self) -> None:
        """Any read says that the replica is there."""

    def on_settings(self) -> None:
        self._connection.settled()
        self._connection.changed()

    def on_settings_answered(self) -> None:
        """Ours never change."""

    def on_goaway(self, last_stream_id: int, code: int) -> None:
        self.draining = True
        for stream in self.all:
            if stream.id > last_stream_id and self._open.pop(stream.id, None) is not None:
                said = "the replica is leaving this connection"
                self._fail(stream, UpstreamReset(said, reused=stream.reused, answered=False))
        self._connection.changed()

    # --- inside

    def _end(self, stream: Http2Stream) -> None:
        if self._open.pop(stream.id, None) is None:
            return
        self.served += 1
        if stream.held:
            self._engine.consumed(stream.id, stream.held)
        if self._engine.waiting(stream.id):  # the replica needs no more of the request
            self._engine.reset(stream.id, ErrorCode.NO_ERROR)
        self.taken -= 1
        handler = stream.detach()
        self._connection.changed()
        if handler is not None:
            try:
                handler.on_end()
            except Exception:  # noqa: BLE001 - its own exchange ends, not all that share the connection
                _log.exception("the end of a response failed")

    def _fail(self, stream: Http2Stream, error: UpstreamError) -> None:
        """`stream` is among the open ones no more: tell its handler."""
        self.taken -= 1
        handler = stream.detach()
        self._connection.changed()
        if handler is not None:
            try:
                handler.on_failed(error)
            except Exception:  # noqa: BLE001 - its own exchange ends, not all that share the connection
                _log.exception("the failure of a response failed")

    def _stumble(self, stream: Http2Stream) -> None:
        _log.exception("the handler of a response failed")
        self.fail(stream, UpstreamError("The gateway could not read the response."))


def _named(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"code {code}"
