"""The HTTP/1.1 sockets to one replica: one exchange at a time on each, reused last-in first-out.

A replica closes an idle connection after its keep-alive time (vLLM: 5 s), so one that is idle for
`max_idle_s` is never used again. The race that remains (closed by the replica while our request is
on its way) shows as `UpstreamReset(reused=True, answered=False)`.
"""

from __future__ import annotations

from collections.abc import Mapping

from backend.config import PoolConfig
from backend.http1_client import Connection
from backend.http1_protocol import Http1Protocol
from core.clock import Clock
from core.errors import UpstreamReset


class Http1Sockets:
    """It owns its `Http1Protocol`s: idle or busy. `reads_done` are the reads of ended exchanges."""

    def __init__(self, replica_id: str, config: PoolConfig, clock: Clock) -> None:
        self._id = replica_id
        self._clock = clock
        self._max_idle, self._max_idle_s = config.max_idle, config.max_idle_s
        self.idle: dict[Http1Protocol, None] = {}
        self.busy: set[Http1Protocol] = set()
        self.reads_done = 0
        self.open = True

    def __repr__(self) -> str:
        return f"<Http1Sockets to {self._id}: {len(self.idle)} idle, {len(self.busy)} busy>"

    def take(self) -> Http1Protocol | None:
        """The connection that was idle for the shortest time, if it is young enough."""
        while self.idle:
            protocol, _ = self.idle.popitem()
            if self._clock() - protocol.idle_at >= self._max_idle_s:
                # Last in, first out: all others are older still.
                protocol.abort()
                self.close_idle()
                return None
            if protocol.usable:
                return protocol
        return None

    def hold(self, protocol: Http1Protocol) -> Connection:
        """Give one out that is in no set."""
        self.busy.add(protocol)
        return Connection(protocol, self._id)

    def released(self, protocol: Http1Protocol) -> None:
        self.busy.discard(protocol)
        self.reads_done += protocol.reads
        protocol.reads = 0
        # As `keep`, written out: there is one for each request.
        if self.open and len(self.idle) < self._max_idle:
            protocol.idle_at = self._clock()
            self.idle[protocol] = None
        else:
            protocol.abort()

    def keep(self, protocol: Http1Protocol) -> None:
        if self.open and len(self.idle) < self._max_idle:
            protocol.idle_at = self._clock()
            self.idle[protocol] = None
        else:
            protocol.abort()

    def lost(self, protocol: Http1Protocol) -> None:
        self.reads_done += protocol.reads
        protocol.reads = 0
        self.busy.discard(protocol)
        self.idle.pop(protocol, None)

    def close_idle(self) -> None:
        idle, self.idle = self.idle, {}
        for protocol in idle:
            protocol.abort()

    def tick(self, now: float) -> None:
        """Close what was idle for too long."""
        for protocol in [p for p in self.idle if now - p.idle_at >= self._max_idle_s]:
            del self.idle[protocol]
            protocol.abort()

    @property
    def reads(self) -> int:
        """Grows while any stream of the replica flows."""
        reads = self.reads_done
        for protocol in self.busy:
            reads += protocol.reads + (_progress(protocol) if protocol.diverted else 0)
        return reads

    def progress_of_each(self) -> dict[Http1Protocol, int]:
        return {protocol: _progress(protocol) for protocol in self.busy}

    def fail_silent(self, before: Mapping[Http1Protocol, int], what: str) -> None:
        """Fail the exchanges that have got no further than `before`."""
        for protocol, progress in before.items():
            if protocol in self.busy and _progress(protocol) == progress:
                answered = protocol.reads > 0
                protocol.fail(UpstreamReset(what, reused=protocol.served > 0, answered=answered))


def _progress(protocol: Http1Protocol) -> int:
    """Of the exchange at hand: see `ResponseHandler`."""
    return 0 if protocol.handler is None else protocol.handler.progress
