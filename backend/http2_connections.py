"""The HTTP/2 connections to one replica: shared by exchanges, each once it is usable.

The first one with room gets a new stream, so that those opened for a rush fall idle together and
are closed. A connection that the replica is leaving (GOAWAY), or that is not sure to be alive, gets
none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from backend.config import PoolConfig
from backend.http2_protocol import Http2Protocol
from backend.http2_stream import Http2Stream
from core.clock import Clock


class Http2Connections:
    """It owns its `Http2Protocol`s from `add` until they are lost. `on_room` is told which one has
    room again."""

    def __init__(
        self,
        replica_id: str,
        config: PoolConfig,
        clock: Clock,
        on_room: Callable[[Http2Protocol], None],
    ) -> None:
        self._id = replica_id
        self._warm, self._max_idle_s, self._ping_s = config.warm, config.max_idle_s, config.ping_s
        self._clock = clock
        self._on_room = on_room
        self._all: dict[Http2Protocol, None] = {}
        self._progress_done = 0
        self.open = True

    def __repr__(self) -> str:
        return f"<Http2Connections to {self._id}: {list(self._all)}>"

    def __len__(self) -> int:
        return len(self._all)

    def take(self) -> Http2Stream | None:
        """A place on the first connection that has room."""
        for protocol in self._all:
            if protocol.room > 0:
                return protocol.take(self._id)
        return None

    def add(self, protocol: Http2Protocol) -> None:
        """One that is usable."""
        self._all[protocol] = None
        protocol.idle_at = self._clock()
        if not self.open:
            protocol.leave()

    def changed(self, protocol: Http2Protocol) -> None:
        if protocol not in self._all:
            return
        if not protocol.taken:
            protocol.idle_at = self._clock()
            if protocol.draining:
                protocol.leave()
        if protocol.room > 0:
            self._on_room(protocol)

    def lost(self, protocol: Http2Protocol) -> None:
        if protocol in self._all:
            del self._all[protocol]
            self._progress_done += protocol.progress

    def close(self) -> None:
        """Give out no more places; each connection is closed after its last stream."""
        self.open = False
        for protocol in list(self._all):
            protocol.leave()

    def close_idle(self) -> None:
        for protocol in self._idle():
            protocol.leave()

    def tick(self, now: float) -> None:
        """Find the dead ones, and close what is idle for too long and more than is kept warm."""
        for protocol in list(self._all):
            protocol.check(now, self._ping_s)
        for protocol in self._idle()[self._warm :]:
            if now - protocol.idle_at >= self._max_idle_s:
                protocol.leave()

    @property
    def with_room(self) -> int:
        """How many connections would take a stream."""
        return sum(protocol.room > 0 for protocol in self._all)

    @property
    def idle(self) -> int:
        return len(self._all) - self.busy

    @property
    def busy(self) -> int:
        """How many connections have streams."""
        return sum(protocol.taken > 0 for protocol in self._all)

    @property
    def streams(self) -> int:
        return sum(protocol.taken for protocol in self._all)

    @property
    def reads(self) -> int:
        """Grows while any stream of the replica flows."""
        return self._progress_done + sum(protocol.progress for protocol in self._all)

    def progress_of_each(self) -> dict[Http2Stream, int]:
        return {stream: stream.progress for protocol in self._all for stream in protocol.streams}

    def fail_silent(self, before: Mapping[Http2Stream, int], what: str) -> None:
        """Fail the streams that have got no further than `before`."""
        for protocol in list(self._all):
            for stream in protocol.streams:
                if before.get(stream) == stream.progress:
                    protocol.fail(stream, stream.lost(what))

    def _idle(self) -> list[Http2Protocol]:
        return [protocol for protocol in self._all if not protocol.taken]
