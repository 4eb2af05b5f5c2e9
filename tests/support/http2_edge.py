"""An HTTP/2 client connection without sockets, spoken to in frames written by hand."""

from __future__ import annotations

from typing import Any, cast

from edge import FakeListener, FakeTask, FakeTransport, answer
from http2_frames import PREFACE, SETTINGS_ACK, Answer, Reader, Writer, settings

from core.exchange import Request
from core.http2.engines import EngineName
from core.metrics import Metrics
from proxy.config import ListenLimits, ListenTimeouts
from proxy.http2.connection import Http2Connection
from proxy.http2.exchange import Http2Exchange
from proxy.listen.listener import Listener


class Http2Transport(FakeTransport):
    """Also keeps whether it is read from."""

    reading = True

    def pause_reading(self) -> None:
        self.reading = False


class FakeReadTurns:
    def __init__(self) -> None:
        self.taken = 0

    def take(self, transport: object) -> None:
        self.taken += 1


class Http2Listener(FakeListener):
    def __init__(self, timeouts: ListenTimeouts, limits: ListenLimits) -> None:
        super().__init__(timeouts, limits)
        self.read_turns = FakeReadTurns()
        self.metrics = Metrics.private()
        self.http2_floods = self.metrics.counter("floods_total", "Floods", ("budget",))


class Http2Edge:
    """One connection. With `greeted` the preface and the settings have been exchanged."""

    def __init__(
        self,
        engine: EngineName,
        *,
        timeouts: ListenTimeouts | None = None,
        limits: ListenLimits | None = None,
        greeted: bool = True,
        client_settings: bytes = settings(),
    ) -> None:
        self.listener = Http2Listener(timeouts or ListenTimeouts(), limits or ListenLimits())
        self.connection = Http2Connection(cast(Listener, self.listener), "192.0.2.1", engine)
        self.transport = Http2Transport()
        self.client = Writer()
        self.reader = Reader()
        self._read = 0
        self.connection.connection_made(cast(Any, self.transport))
        if greeted:
            self.send(PREFACE + client_settings + SETTINGS_ACK)

    @property
    def exchanges(self) -> list[Http2Exchange]:
        return cast("list[Http2Exchange]", self.listener.begun)

    @property
    def requests(self) -> list[Request]:
        return [exchange.request for exchange in self.exchanges]

    @property
    def answers(self) -> dict[int, Answer]:
        return self.reader.answers

    def task(self, at: int = -1) -> FakeTask:
        return cast(FakeTask, self.exchanges[at].task)

    def send(self, *pieces: bytes) -> Http2Edge:
        for piece in pieces:
            if not self.transport.over:
                self.connection.data_received(piece)
        return self.turn()

    def turn(self) -> Http2Edge:
        """Let the loop run, and read what was written."""
        while self.listener.loop.calls:
            self.listener.loop.calls.pop(0)()
        written = self.transport.written
        self.reader.feed(written[self._read :])
        self._read = len(written)
        return self

    def answer(self, at: int, body: bytes = b"ok") -> Http2Edge:
        answer(cast(Any, self.exchanges[at]), body)
        return self.turn()

    def wait(self, seconds: float) -> Http2Edge:
        """Move the clock and sweep, as the watchdog does."""
        give_up_at = self.listener.clock + seconds
        while self.listener.clock < give_up_at:
            self.listener.clock = min(self.listener.clock + 0.5, give_up_at)
            if self.connection.deadline_at <= self.listener.clock:
                self.connection.on_deadline(self.listener.clock)
        return self.turn()

    def lose(self) -> Http2Edge:
        self.connection.connection_lost(None)
        return self
