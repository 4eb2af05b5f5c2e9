"""One HTTP/1.1 client connection: its transport, its deadlines, one exchange at a time.

What the bytes mean is decided in `http1/request.py`, what an answer looks like in
`http1/exchange.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from core.errors import GatewayError, RequestTimeout
from core.exchange import Handshake, Request
from proxy.answers import answer_error
from proxy.flow import NEVER
from proxy.http1.exchange import Http1Exchange
from proxy.http1.request import RequestReader
from proxy.listen.connection import FRESH_S
from proxy.pace import first_look, next_look
from proxy.tls.session import TlsSession, handshake_of, tls_session
from proxy.turns import LARGE_READ_BYTES

if TYPE_CHECKING:
    from proxy.listen.listener import Listener

_LINGER_S = 1.0
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Http1Connection(asyncio.Protocol):
    """States: waiting for a request, reading its body, answering, closing."""

    def __init__(self, listener: Listener, peer: str, arrived_at: float | None = None) -> None:
        """`arrived_at`: when it was accepted, if it has TLS."""
        self._arrived_at = arrived_at
        self._handshake: Handshake | None = None
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self.send: Callable[[bytes], object] = self._write
        self._peer = peer
        self._reader = RequestReader(listener.limits, peer)
        self._held = 0  # bytes of a body that is still arriving
        self._reading_body = False
        self._closing = False
        self._lingering = False
        self._paused = False
        self._waiting = 0  # bytes in the transport's buffer at the last look
        self._exchange: Http1Exchange | None = None
        self._session: TlsSession | None = None
        self._idle_at = 0.0  # when it began to wait for a request
        self.keep_alive = True
        self.deadline_at = NEVER

    def __repr__(self) -> str:
        return f"<Http1Connection peer={self._peer} exchange={self._exchange}>"

    @property
    def date(self) -> bytes:
        return self._listener.date

    # --- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's transports are no subclass of asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        self.send = transport.write
        transport.set_write_buffer_limits(high=65_536)
        self._listener.opened(self, self._peer)
        self._idle_at = self._listener.now()
        if self._arrived_at is not None:
            self._handshake = handshake_of(transport, self._idle_at - self._arrived_at)
        self.deadline_at = self._idle_at + self._listener.timeouts.head_s

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.closed(self, self._peer)
        if self._held:
            self._hold(0)
        self._closing = True
        self.deadline_at = NEVER
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.detach()
            if exchange.task is not None:
                exchange.task.cancel()

    def eof_received(self) -> bool:
        return False  # a client that closes its side has left

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if self._exchange is not None or self._paused:
            # Reading never stops: a paused transport would not report that the client left.
            if self.keep_alive and not self._reader.keep_early(data):
                self.keep_alive = False
            self.keep_alive = self.keep_alive and self._reader.keep_alive
        else:
            self._read(data)

    def pause_writing(self) -> None:
        self._paused = True
        if self._transport is not None:
            self._waiting = self._transport.get_write_buffer_size()
        if self._exchange is not None and self._exchange.source is not None:
            self._exchange.source.pause_reading()
        self.deadline_at = self._listener.now() + self._listener.timeouts.write_idle_s

    def resume_writing(self) -> None:
        self._paused = False
        if self._closing:
            return
        if self._exchange is None:
            self._await_request()
            return
        self.deadline_at = NEVER
        if self._exchange.source is not None:
            self._exchange.source.resume_reading()

    def on_deadline(self, now: float) -> None:
        """The client is too slow with a head or a body, idle, or does not read its answer."""
        reader, timeouts = self._reader, self._listener.timeouts
        if self._closing or self._paused:
            self._on_slow_reader(now)
        elif reader.in_body:
            try:
                self.deadline_at = next_look(reader.body_started_at, reader.received, timeouts, now)
            except GatewayError as error:
                self._refuse(error)
        elif reader.waiting:
            self._refuse(RequestTimeout("The request head did not arrive in time."))
        else:
            self._close()

    def _on_slow_reader(self, now: float) -> None:
        """A client that takes some of what waits for it is slow; one that takes nothing is gone.
        While closing there is only so long to take the rest."""
        waiting = self._transport.get_write_buffer_size() if self._transport else 0
        if self._closing or waiting >= self._waiting:
            self._abort()
            return
        self._waiting = waiting
        self.deadline_at = now + self._listener.timeouts.write_idle_s

    # --- reading a request

    def _read(self, data: bytes) -> None:
        now = self._listener.now()
        reader = self._reader
        try:
            request = reader.feed(data, now)
        except GatewayError as error:
            self._refuse(error)
            return
        if request is not None:
            self._begin(request)
        elif reader.in_body:
            try:
                self._hold(reader.received)
                self._listener.admission.check_body()
            except GatewayError as error:
                self._refuse(error)
                return
            if len(data) >= LARGE_READ_BYTES and self._transport is not None:
                self._listener.read_turns.take(self._transport)
            if not self._reading_body:
                self._reading_body = True
                self.deadline_at = first_look(reader.body_started_at, self._listener.timeouts)
                if reader.wants_continue:
                    self._write(_CONTINUE)
        elif reader.started_at:
            self.deadline_at = reader.started_at + self._listener.timeouts.head_s

    def _begin(self, request: Request) -> None:
        self._reading_body = False
        if self._held:
            self._hold(0)  # from here on the exchange holds it
        self.keep_alive = self._reader.keep_alive and self._listener.keep_alive
        self.deadline_at = NEVER
        if self._handshake is not None:
            request.handshake, self._handshake = self._handshake, None
        self._exchange = exchange = Http1Exchange(self, request)
        tls = self._listener.tls
        if tls is None or tls.rules is None or self._admitted(exchange):
            exchange.task = self._listener.begin(exchange)

    def _admitted(self, exchange: Http1Exchange) -> bool:
        """Whether TLS said what it must for this request; if not, it is answered."""
        assert self._transport is not None
        if self._session is None:
            self._session = tls_session(self._transport)
        try:
            self._listener.admit(self._session, exchange.request)
        except GatewayError as error:
            answer_error(exchange, error, [(b"x-request-id", exchange.id.encode("ascii"))])
            self._listener.refused(exchange, error)
            return False
        return True

    def _hold(self, size: int) -> None:
        """So many bytes of a body are in memory."""
        self._listener.admission.hold(size - self._held)
        self._held = size

    def _read_pipelined(self) -> None:
        if not (self._exchange or self._paused or self._closing or self._reader.in_body):
            self._read(b"")

    # --- writing an answer

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._closing:
            self._transport.write(data)

    def end(self, data: bytes) -> None:
        """The answer is complete: read the next request, or close."""
        if data:
            self._write(data)
        self._exchange = None
        if self._lingering:
            self._linger()
        elif not (self._paused and self.keep_alive):
            self._await_request()  # otherwise it waits until the client reads this answer

    def _await_request(self) -> None:
        listener = self._listener
        if not self.keep_alive or not listener.admission.keep_alive:
            self._close()
            return
        # Who was not told that the connection ends may be asking already, also while we drain.
        self._idle_at = listener.now()
        self.deadline_at = self._idle_at + (
            FRESH_S if listener.admission.draining else listener.timeouts.keep_alive_s
        )
        if self._reader.waiting:  # not from here: the caller is still finishing its own work
            self._listener.loop.call_soon(self._read_pipelined)

    def cut(self, data: bytes, *, hard: bool) -> None:
        """End the connection in the middle of an answer."""
        if data:
            self._write(data)
        self._exchange = None
        if hard:
            self._abort()
        else:
            self._close()

    @property
    def idle(self) -> bool:
        """Whether no request is being read or answered."""
        return self._exchange is None and not self._reader.in_body and not self._reader.waiting

    @property
    def fresh(self) -> bool:
        return self._listener.now() - self._idle_at < FRESH_S

    def shut_idle(self) -> None:
        """Close when idle, or else after an answer that says so; one that has begun already and
        does not say so leaves it to the listener's draining."""
        if self.idle:
            self._close()
        elif self._exchange is None or not self._exchange.started:
            self.keep_alive = False

    def _refuse(self, error: GatewayError) -> None:
        """Answer a request that never became one, then close: its end is not known."""
        self.keep_alive = False
        self._lingering = True
        self._hold(0)
        self._reader.drop()
        started_at = self._reader.started_at or self._listener.now()
        request = Request("", "", "", (), b"", self._peer, "1.1", started_at, 0.0)
        self._exchange = exchange = Http1Exchange(self, request)
        answer_error(exchange, error, [(b"x-request-id", exchange.id.encode("ascii"))])
        self._listener.refused(exchange, error)

    def _close(self) -> None:
        """Flush what was written, then close; a peer that does not read is cut off."""
        if self._transport is not None and not self._closing:
            self._closing = True
            self.deadline_at = self._listener.now() + self._listener.timeouts.write_idle_s
            self._transport.close()

    def _linger(self) -> None:
        """Close after an answer to a request that is still arriving: unread bytes would turn
        the close into a reset that can swallow the answer (RFC 9112 section 9.6)."""
        if self._transport is not None and not self._closing:
            self._closing = True
            self.deadline_at = self._listener.now() + _LINGER_S
            if self._transport.can_write_eof():
                self._transport.write_eof()

    def _abort(self) -> None:
        self._closing = True
        self.deadline_at = NEVER
        if self._exchange is not None:
            self._exchange.detach()
        if self._transport is not None:
            self._transport.abort()
