"""The streams of one HTTP/2 client connection, between its engine and their exchanges.

A stream is first a request that arrives, then an exchange, and at last only bytes that have to
leave. What happens to one of them happens to no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.errors import GatewayError
from core.exchange import Header, Request
from core.http2.engine import Engine, ErrorCode
from core.http2.guard import FrameGuard
from proxy.answers import answer_error
from proxy.flow import NEVER
from proxy.http2.exchange import Http2Exchange, StreamsConnection
from proxy.http2.request import HeadReader, IncomingRequest
from proxy.pace import first_look, next_look

if TYPE_CHECKING:
    from proxy.listen.listener import Listener

_MOST_BODIES = 4
"""So many of the largest bodies may arrive on one connection at a time."""
_CLEAN = -1
_UNWANTED_S, _UNWANTED_BODIES = 5.0, 16
"""So long, and as much as so many of the largest bodies, the rest of a request that was refused is
read: there are clients that read no answer before they have sent all (the SDKs' httpx is one)."""


class Blocked:
    """A stream whose client takes nothing: so many bytes waited when it was last looked at."""

    __slots__ = ("look_at", "waiting")

    def __init__(self, waiting: int, look_at: float) -> None:
        self.waiting = waiting
        self.look_at = look_at

    def __repr__(self) -> str:
        return f"<Blocked {self.waiting} B>"


class Unwanted:
    """What may still come of a request that was answered already."""

    __slots__ = ("left", "until")

    def __init__(self, left: int, until: float) -> None:
        self.left = left
        self.until = until

    def __repr__(self) -> str:
        return f"<Unwanted {self.left} B>"


class Http2Streams:
    """What the engine tells (`core.http2.engine.Http2Handler`)."""

    def __init__(
        self, connection: StreamsConnection, listener: Listener, guard: FrameGuard, peer: str
    ) -> None:
        self.engine: Engine
        self.taking = True  # new streams
        self.unsettled = False  # `settle` has something to do
        self._connection = connection
        self._listener = listener
        self._guard = guard
        self._peer = peer
        self._heads = HeadReader(listener.limits)
        self._incoming: dict[int, IncomingRequest] = {}
        self._exchanges: dict[int, Http2Exchange] = {}
        self._ending: dict[int, int] = {}  # with which code, once all has left
        self._unwanted: dict[int, Unwanted] = {}
        self._blocked: dict[int, Blocked] = {}
        self._held = 0  # bytes of bodies that are still arriving

    def __repr__(self) -> str:
        return f"<Http2Streams {len(self)} open, {len(self._blocked)} blocked>"

    def __len__(self) -> int:
        open_now = len(self._incoming) + len(self._exchanges)
        return open_now + len(self._ending) + len(self._unwanted)

    @property
    def single(self) -> bool:
        """Whether no two exchanges can have something to say at a time."""
        return len(self._exchanges) == 1

    # --- what the engine tells

    def on_head(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None:
        now = self._connection.now
        if not self.taking or len(self) >= self._listener.limits.max_streams:
            self.engine.reset(stream_id, ErrorCode.REFUSED_STREAM)
            self._guard.count_reset(now)
            return
        try:
            head = self._heads.read(headers)
        except GatewayError as error:
            self._connection.began(False)
            self._refuse(stream_id, error, whole=end_stream)
            return
        finally:
            self._guard.count_header_bytes(self._heads.size, now)
        self._connection.began(head.fragile)
        incoming = IncomingRequest(head, self._listener.limits, now)
        if end_stream:
            self._begin(stream_id, incoming)
            return
        self._incoming[stream_id] = incoming
        incoming.look_at = first_look(now, self._listener.timeouts)
        self._connection.look_by(incoming.look_at)

    def on_data(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        self.engine.consumed(stream_id, len(data))
        incoming = self._incoming.get(stream_id)
        if incoming is None:
            self._ignore(stream_id, len(data), end_stream)
            return
        if self._held + len(data) > _MOST_BODIES * self._listener.limits.max_body_bytes:
            self._stop(stream_id, ErrorCode.REFUSED_STREAM)
            return
        try:
            incoming.add(data)
            if not end_stream:
                self._hold(incoming)
        except GatewayError as error:
            self._refuse(stream_id, error, whole=end_stream)
            return
        if end_stream:
            self._begin(stream_id, incoming)

    def on_trailers(self, stream_id: int) -> None:
        incoming = self._incoming.get(stream_id)
        if incoming is not None:
            self._begin(stream_id, incoming)
        else:
            self._ignore(stream_id, 0, True)

    def on_reset(self, stream_id: int, code: int, by_peer: bool) -> None:
        if not by_peer:
            self._guard.count_reset(self._connection.now)
        self._drop(stream_id)

    def on_writable(self, stream_id: int) -> None:
        self._blocked.pop(stream_id, None)
        exchange = self._exchanges.get(stream_id)
        if exchange is None or self._connection.writing_paused:
            return
        if exchange.source is not None:
            exchange.source.resume_reading()

    def on_ping_answered(self) -> None:
        self._connection.ping_answered()

    def on_settings(self) -> None:
        self._connection.settings_came()

    def on_settings_answered(self) -> None:
        self._connection.settings_answered()

    def on_goaway(self, last_stream_id: int, code: int) -> None:
        """The client is leaving; the engine is over once its streams have ended."""

    # --- what the connection tells

    def ended(self, exchange: Http2Exchange, code: int = _CLEAN) -> None:
        """An exchange is over; reset its stream with `code` once its last bytes have left."""
        self._exchanges.pop(exchange.stream_id, None)
        self._ending.setdefault(exchange.stream_id, code)
        self.unsettled = True

    def pause(self) -> None:
        """Nothing can be written now."""
        for exchange in self._exchanges.values():
            if exchange.source is not None:
                exchange.source.pause_reading()

    def resume(self) -> None:
        for stream_id, exchange in list(self._exchanges.items()):
            if self._connection.writing_paused:
                return
            if exchange.source is not None and stream_id not in self._blocked:
                exchange.source.resume_reading()

    def settle(self) -> bool:
        """After `outgoing`: hold up what the client does not take, let go what has left. Whether
        there is more to send."""
        engine, more = self.engine, False
        if engine.blocked:
            for stream_id in engine.blocked - self._blocked.keys():
                self._block(stream_id)
        if self._ending:
            for stream_id in [sid for sid in self._ending if sid not in engine.blocked]:
                code = self._ending.pop(stream_id)
                if code != _CLEAN:
                    engine.reset(stream_id, code)
                    more = True
        self.unsettled = bool(self._ending)
        return more

    def check(self, now: float) -> float:
        """Give up the streams that are too slow; when to check again."""
        timeouts, next_at = self._listener.timeouts, NEVER
        for stream_id, incoming in list(self._incoming.items()):
            if incoming.look_at <= now:
                try:
                    started_at, size = incoming.started_at, incoming.size
                    incoming.look_at = next_look(started_at, size, timeouts, now)
                except GatewayError as error:
                    self._refuse(stream_id, error, whole=False)
                    continue
            next_at = min(next_at, incoming.look_at)
        for stream_id, blocked in list(self._blocked.items()):
            if blocked.look_at <= now:
                waiting = self.engine.waiting(stream_id)
                if waiting >= blocked.waiting:
                    self._drop(stream_id)
                    self.engine.reset(stream_id, ErrorCode.CANCEL)
                    continue
                blocked.waiting = waiting
                blocked.look_at = now + timeouts.write_idle_s
            next_at = min(next_at, blocked.look_at)
        for stream_id, unwanted in list(self._unwanted.items()):
            if unwanted.until <= now:
                self._stop(stream_id, ErrorCode.NO_ERROR)
            else:
                next_at = min(next_at, unwanted.until)
        return next_at

    def drop_all(self) -> None:
        """The client is gone."""
        for stream_id in [*self._incoming, *self._exchanges]:
            self._drop(stream_id)
        self._ending.clear()
        self._unwanted.clear()
        self._blocked.clear()

    # --- inside

    def _begin(self, stream_id: int, incoming: IncomingRequest) -> None:
        self._forget(stream_id)
        try:
            request = incoming.complete(self._peer, self._connection.now)
            self._connection.admit(request)
        except GatewayError as error:
            self._refuse(stream_id, error, whole=True)
            return
        exchange = Http2Exchange(self._connection, stream_id, request)
        self._exchanges[stream_id] = exchange
        exchange.task = self._listener.begin(exchange)

    def _refuse(self, stream_id: int, error: GatewayError, *, whole: bool) -> None:
        """Answer a request that never became one."""
        self._forget(stream_id)
        now = self._connection.now
        self._guard.count_reset(now)
        request = Request("", "", "", (), b"", self._peer, "2", now, 0.0)
        exchange = Http2Exchange(self._connection, stream_id, request)
        if not whole:
            most = _UNWANTED_BODIES * self._listener.limits.max_body_bytes
            self._unwanted[stream_id] = unwanted = Unwanted(most, now + _UNWANTED_S)
            self._connection.look_by(unwanted.until)
        answer_error(exchange, error, [(b"x-request-id", exchange.id.encode("ascii"))])
        self._listener.refused(exchange, error)

    def _ignore(self, stream_id: int, size: int, ended: bool) -> None:
        """More has come of a request that was answered."""
        unwanted = self._unwanted.get(stream_id)
        if unwanted is None:
            return
        unwanted.left -= size
        if ended:
            del self._unwanted[stream_id]
            self.unsettled = True
        elif unwanted.left < 0:
            self._stop(stream_id, ErrorCode.NO_ERROR)

    def _stop(self, stream_id: int, code: ErrorCode) -> None:
        """End a body that is arriving; NO_ERROR says that its rest is not needed (RFC 9113 section
        8.1). A frame of which a part has come then is missing from the connection's window for
        ever, at least with libnghttp2, so the connection retires."""
        self.engine.reset(stream_id, code)
        self._drop(stream_id)
        self._connection.retire()

    def _forget(self, stream_id: int) -> None:
        """The request is not arriving any more."""
        incoming = self._incoming.pop(stream_id, None)
        if incoming is not None and incoming.held:
            self._held -= incoming.held
            self._listener.admission.hold(-incoming.held)

    def _hold(self, incoming: IncomingRequest) -> None:
        """Count what has come of a body that goes on. Raises GatewayError when it is too much."""
        grown = incoming.size - incoming.held
        incoming.held = incoming.size
        self._held += grown
        self._listener.admission.hold(grown)
        self._listener.admission.check_body()

    def _block(self, stream_id: int) -> None:
        look_at = self._listener.now() + self._listener.timeouts.write_idle_s
        self._blocked[stream_id] = Blocked(self.engine.waiting(stream_id), look_at)
        self._connection.look_by(look_at)
        exchange = self._exchanges.get(stream_id)
        if exchange is not None and exchange.source is not None:
            exchange.source.pause_reading()

    def _drop(self, stream_id: int) -> None:
        """The stream is gone, and with it whoever worked for it."""
        self.unsettled = True
        self._forget(stream_id)
        self._ending.pop(stream_id, None)
        self._unwanted.pop(stream_id, None)
        self._blocked.pop(stream_id, None)
        exchange = self._exchanges.pop(stream_id, None)
        if exchange is not None:
            exchange.detach()
            if exchange.task is not None:
                exchange.task.cancel()
