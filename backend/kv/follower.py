"""Follows the KV events of one data-parallel rank. Performs: sockets, timers, the wall clock.

What is complete and what is missing is judged by `stream.py`; this does what it says.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

import zmq
from zmq.utils.monitor import parse_monitor_message

from backend.kv.events import Batch, decode_batch
from backend.kv.sockets import Context, Wired
from backend.kv.sources import Source
from backend.kv.stream import EventStream, Step
from core.clock import Clock
from core.kv_events import Event, Trust

SUBSCRIBED_S = 0.1
"""After a connection is made, so long until its publisher has surely heard what we subscribe to."""
REPLAY_S = 3.0
"""Silence of one who was asked for a replay. vLLM looks for such questions ten times a second."""
_HWM = 5_000
"""Messages that wait for us; beyond that they are dropped, and asked for."""
_REPLAY_HWM = 100_000
"""More than a publisher remembers: it drops what finds no room, and nobody would ask again."""
_MOST_BYTES = 64 * 1024 * 1024
_HEARTBEAT_MS = 5_000
_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
_END = b"\xff" * 8


class Told(Protocol):
    """Who is told of one rank."""

    def cleared(self) -> None:
        """What was told before holds no more."""

    def happened(self, events: list[Event]) -> None: ...

    def counted(self, batch: Batch, lag_s: float) -> None:
        """For the metrics: `batch` was published `lag_s` ago."""

    def trusted(self, trust: Trust, why: str) -> None:
        """That is how far it can be trusted from now on."""

    def missed(self) -> None:
        """There was a gap."""

    def gone(self) -> None:
        """Nobody tells of it any more."""


class Follower:
    """`start` connects or binds. Raises zmq.ZMQError when the endpoint cannot be used."""

    def __init__(self, context: Context, source: Source, told: Told, clock: Clock) -> None:
        self.source = source
        self._context = context
        self._told = told
        self._clock = clock
        self._stream = EventStream(source.replay_endpoint is not None)
        self._trust = Trust.APPROX
        self._gaps = 0
        self._subscription: Wired | None = None
        self._monitor: Wired | None = None
        self._replay: Wired | None = None
        self._subscribed: asyncio.TimerHandle | None = None
        self._silence: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Follower of {self.source.endpoint}: {self._stream}>"

    @property
    def trust(self) -> Trust:
        return self._trust

    def start(self) -> None:
        socket = self._context.socket(zmq.SUB)
        try:
            self._configure(socket)
            socket.setsockopt(zmq.RCVHWM, _HWM)
            socket.setsockopt(zmq.SUBSCRIBE, self.source.topic.encode())
            monitor = socket.get_monitor_socket(_EVENTS)
            if self.source.bind:
                socket.bind(self.source.endpoint)
            else:
                socket.connect(self.source.endpoint)
        except zmq.ZMQError:
            socket.disable_monitor()
            socket.close(linger=0)
            raise
        self._monitor = Wired(monitor, self._on_monitor)
        self._subscription = Wired(socket, self._on_live)

    def close(self) -> None:
        self._stop_asking()
        if self._subscribed is not None:
            self._subscribed.cancel()
        for wired in (self._monitor, self._subscription):
            if wired is not None:
                wired.close()

    def tick(self) -> None:
        """To be called about once a second."""
        self._stream.tick(self._clock())
        self._tell_trust()

    def due(self) -> None:
        """Something was prefilled that it has not told of."""
        self._stream.due(self._clock())

    # --- the connection

    def _configure(self, socket: zmq.Socket[bytes]) -> None:
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, _MOST_BYTES)
        socket.setsockopt(zmq.RECONNECT_IVL, 100)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2_000)
        socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 2 * _HEARTBEAT_MS)

    def _on_monitor(self, frames: list[bytes]) -> None:
        event = parse_monitor_message(frames)["event"]
        if self._subscribed is not None:
            self._subscribed.cancel()
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            loop = asyncio.get_running_loop()
            self._subscribed = loop.call_later(SUBSCRIBED_S, self._on_subscribed)
        else:
            self._stop_asking()
            self._stream.disconnected(self._clock())
            self._tell_trust()

    def _on_subscribed(self) -> None:
        self._do(self._stream.connected())

    # --- batches

    def _on_live(self, frames: list[bytes]) -> None:
        numbered = _numbered(frames)
        if numbered is None:
            return
        seq, data = numbered
        try:
            batch = decode_batch(data)
        except ValueError:
            self._do(self._stream.unreadable(seq))
            return
        self._told.counted(batch, time.time() - batch.ts)
        self._do(self._stream.live(seq, batch))

    def _on_replayed(self, frames: list[bytes]) -> None:
        numbered = _numbered(frames)
        if numbered is None:
            return
        self._await_answer()
        if frames[-2] == _END:
            self._stop_asking()
            self._do(self._stream.replay_ended())
            return
        seq, data = numbered
        try:
            batch = decode_batch(data)
        except ValueError:
            self._told.cleared()
            batch = Batch(0.0, [], None, 0, 1)
        self._do(self._stream.replayed(seq, batch))

    def _do(self, step: Step) -> None:
        if step.clear:
            self._told.cleared()
        for batch in step.batches:
            self._told.happened(batch.events)
        if self._stream.gaps != self._gaps:
            self._gaps = self._stream.gaps
            self._told.missed()
        self._tell_trust()
        if step.replay_from is not None:
            self._ask(step.replay_from)

    def _tell_trust(self) -> None:
        if self._stream.trust is not self._trust:
            self._trust = self._stream.trust
            self._told.trusted(self._trust, self._stream.why)

    # --- replays

    def _ask(self, number: int) -> None:
        self._stop_asking()
        endpoint = self.source.replay_endpoint
        assert endpoint is not None
        socket = self._context.socket(zmq.DEALER)
        try:
            self._configure(socket)
            socket.setsockopt(zmq.RCVHWM, _REPLAY_HWM)
            socket.connect(endpoint)
        except zmq.ZMQError:
            socket.close(linger=0)
            self._do(self._stream.replay_ended(answered=False))
            return
        self._replay = Wired(socket, self._on_replayed)
        self._replay.send([b"", number.to_bytes(8, "big")])
        self._await_answer()

    def _await_answer(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
        self._silence = asyncio.get_running_loop().call_later(REPLAY_S, self._on_silence)

    def _on_silence(self) -> None:
        self._stop_asking()
        self._do(self._stream.replay_ended(answered=False))

    def _stop_asking(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None
        if self._replay is not None:
            self._replay.close()
            self._replay = None


def _numbered(frames: list[bytes]) -> tuple[int, bytes] | None:
    """The last two frames: a number of 8 bytes, big-endian, and what was numbered."""
    if len(frames) < 2 or len(frames[-2]) != 8:
        return None
    return int.from_bytes(frames[-2], "big"), frames[-1]
