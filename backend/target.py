"""All connections to one replica, in whichever protocol they turn out to be.

Over HTTP/1.1 each exchange that finds no idle socket opens one of its own. Over HTTP/2 exchanges
share, so those that find no room wait together: for a place that becomes free, or for as many new
connections as they will fill. Nobody is promised a place on a connection that is not usable yet.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Hashable
from itertools import islice
from typing import NamedTuple, TypeAlias

from backend.config import ReplicaConfig, UpstreamConfig
from backend.dial import REFUSED
from backend.dialer import Dialer
from backend.http1_client import Connection
from backend.http1_protocol import Http1Protocol
from backend.http1_sockets import Http1Sockets
from backend.http2_connections import Http2Connections
from backend.http2_protocol import Http2Protocol
from backend.http2_stream import Http2Stream
from core.clock import Clock
from core.errors import GatewayError, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from core.identity import identity
from core.metrics import Counter
from core.tasks import spawn

RECOVERY_S = 5.0
"""For so long after a failed connect nothing is opened ahead of need."""
USUAL_STREAMS = 100
"""How many streams a connection is expected to take before one has told (RFC 9113 section 6.5.2:
servers should allow no less)."""

RESULTS = ("ok", "refused", "timeout", "failed", "cancelled")
"""How a connect may end."""

_CLOSING = "The gateway is closing its connections."

Hold: TypeAlias = Connection | Http2Stream


class Progress(NamedTuple):
    """How often something has arrived for each exchange."""

    http1: dict[Http1Protocol, int]
    http2: dict[Http2Stream, int]


class Counts(NamedTuple):
    """Open connections, and HTTP/2 streams on them."""

    idle: int
    busy: int
    streams: int


class _Connects:
    """Counters of one replica's connects, by result."""

    __slots__ = ("cancelled", "failed", "ok", "refused", "timeout")

    def __init__(self, family: Counter, replica_id: str) -> None:
        by_result = [family.labels(replica_id, result) for result in RESULTS]
        self.ok, self.refused, self.timeout, self.failed, self.cancelled = by_result

    def of(self, error: UpstreamError) -> Counter:
        if isinstance(error, UpstreamTimeout):
            return self.timeout
        return self.refused if error.reason == REFUSED else self.failed


class Target:
    """One replica's connections. `access`: how it is reached, to tell whether that has changed.
    `failed_at` is the instant of the last connect that failed."""

    def __init__(
        self,
        config: ReplicaConfig,
        upstream: UpstreamConfig,
        connects: Counter,
        clock: Clock,
        context: ssl.SSLContext | None,
    ) -> None:
        """`connects` by replica and result. Raises ConfigError."""
        self.id = config.replica.id
        self.access = access_of(config, upstream)
        self._dialer = Dialer(config, upstream, context)
        self._clock = clock
        self._warm = upstream.pool.warm
        self._http1 = Http1Sockets(self.id, upstream.pool, clock)
        self._http2 = Http2Connections(self.id, upstream.pool, clock, self._serve)
        self._multiplexed = self._dialer.may_multiplex  # until a handshake says otherwise
        self._streams_expected = USUAL_STREAMS
        # Who waits for a place, in the order of asking, and whether it must be on a new connection;
        # given None they ask again.
        self._waiting: dict[asyncio.Future[Hold | None], bool] = {}
        self._dials: set[asyncio.Task[None]] = set()
        self._opening = 0
        self._failed_at = float("-inf")
        self._connects = _Connects(connects, self.id)
        self._retired = False

    def __repr__(self) -> str:
        return f"<Target {self._http1} {self._http2}, {len(self._waiting)} wait>"

    # --- exchanges

    async def connect(self, fresh: bool) -> Hold:
        """A place for one exchange; `fresh`: on no connection that served before. Raises
        UpstreamError or Unavailable."""
        while True:
            if self._multiplexed:
                given: Hold | None = None if fresh else self._http2.take()
                if given is None:
                    given = await self._wait(fresh)
                if given is not None:
                    return given
                continue
            protocol = None if fresh else self._http1.take()
            if protocol is not None:
                return self._http1.hold(protocol)
            made = await self._open()
            if isinstance(made, Http1Protocol):
                return self._http1.hold(made)
            self._adopt(made)  # the replica has come to speak HTTP/2
            fresh = False

    def count(self) -> int:
        """Sockets that are open or being opened."""
        return len(self._http1.idle) + len(self._http1.busy) + len(self._http2) + self._opening

    @property
    def done(self) -> bool:
        """Nothing is open and nobody waits."""
        return not (self.count() or self._waiting or self._dials)

    def counts(self) -> Counts:
        return Counts(
            len(self._http1.idle) + self._http2.idle,
            len(self._http1.busy) + self._http2.busy,
            self._http2.streams,
        )

    # --- the pool's side

    @property
    def busy(self) -> bool:
        return bool(self._http1.busy or self._http2.busy)

    @property
    def reads(self) -> int:
        """Grows while any stream of the replica flows."""
        return self._http1.reads + self._http2.reads

    def progress_of_each(self) -> Progress:
        return Progress(self._http1.progress_of_each(), self._http2.progress_of_each())

    def fail_silent(self, before: Progress) -> None:
        """Fail the exchanges for which nothing has arrived since `before`."""
        what = f"{self.id} refuses connections and the stream is silent"
        self._http1.fail_silent(before.http1, what)
        self._http2.fail_silent(before.http2, what)

    def close_idle(self) -> None:
        self._http1.close_idle()
        self._http2.close_idle()

    def close(self) -> None:
        """Open nothing more; what is in use is closed when its response ends."""
        self._http1.open = False
        self._http1.close_idle()
        self._http2.close()
        for task in list(self._dials):
            task.cancel()

    def retire(self) -> None:
        """No exchange will ask for a place any more. Those that have or await one go on; what is
        idle is closed now and in each tick."""
        self._retired = True
        self.close_idle()

    def tick(self, now: float) -> None:
        """To be called once a second: close what is dead or idle for too long, open what is to be
        kept warm."""
        self._http1.tick(now)
        self._http2.tick(now)
        if self._retired:
            self.close_idle()
        elif self._http1.open and now - self._failed_at >= RECOVERY_S:
            ready = self._http2.with_room if self._multiplexed else len(self._http1.idle)
            for _ in range(self._warm - ready - self._opening):
                self._dial()

    # --- inside

    async def _wait(self, fresh: bool) -> Hold | None:
        """A place, given out in the order of asking; None to ask again."""
        if not self._http2.open:
            raise UpstreamUnreachable(_CLOSING)
        given: asyncio.Future[Hold | None] = asyncio.get_running_loop().create_future()
        self._waiting[given] = fresh
        self._dial_as_needed()
        try:
            return await given
        except asyncio.CancelledError:
            if not given.cancelled() and given.exception() is None:
                place = given.result()  # given in the very tick in which nobody wants it any more
                if place is not None:
                    place.abort()
            raise
        finally:
            self._waiting.pop(given, None)

    def _dial_as_needed(self) -> None:
        needed = -(-len(self._waiting) // self._streams_expected)
        for _ in range(needed - len(self._dials)):
            self._dial()

    def _dial(self) -> None:
        """Open a connection for whoever waits or comes."""
        task = spawn(self._open_shared(), "pool-dial")
        self._dials.add(task)
        task.add_done_callback(self._dials.discard)

    async def _open_shared(self) -> None:
        made: Http1Protocol | Http2Protocol | None = None
        failure: GatewayError = UpstreamUnreachable(_CLOSING)
        try:
            made = await self._open()
        except GatewayError as error:  # counted; whoever waits is told
            failure = error
        finally:
            self._dials = {task for task in self._dials if task is not asyncio.current_task()}
            if isinstance(made, Http2Protocol):
                self._adopt(made)
            elif made is not None:
                self._fall_back(made)
            elif not self._dials:
                self._turn_away(failure)

    async def _open(self) -> Http1Protocol | Http2Protocol:
        """A new connection, in no set yet."""
        if not self._http1.open:
            raise UpstreamUnreachable(_CLOSING)
        self._opening += 1
        try:
            made = await self._dialer.open(self._http1, self._http2)
        except UpstreamError as error:
            self._failed_at = self._clock()
            self._connects.of(error).inc()
            raise
        except asyncio.CancelledError:
            self._connects.cancelled.inc()
            raise
        finally:
            self._opening -= 1
        self._connects.ok.inc()
        return made

    def _adopt(self, made: Http2Protocol) -> None:
        """Share an HTTP/2 connection that is usable."""
        self._multiplexed = True
        self._http2.add(made)
        self._streams_expected = max(1, made.room)
        if made.room <= 0:
            self._turn_away(UpstreamUnreachable("The replica allows no requests."))
        self._give(made, fresh_too=True)
        self._waiting = {given: f for given, f in self._waiting.items() if not given.done()}
        self._dial_as_needed()

    def _fall_back(self, made: Http1Protocol) -> None:
        """The replica does not offer HTTP/2: the first one gets the socket, the others open their
        own."""
        self._multiplexed = False
        waiting = [given for given in self._waiting if not given.done()]
        self._waiting.clear()
        if not waiting:
            self._http1.keep(made)
        for given in waiting:
            given.set_result(self._http1.hold(made) if given is waiting[0] else None)

    def _serve(self, protocol: Http2Protocol) -> None:
        if self._waiting:
            self._give(protocol, fresh_too=False)

    def _give(self, protocol: Http2Protocol, fresh_too: bool) -> None:
        wanting = (
            given
            for given, fresh in self._waiting.items()
            if not given.done() and (fresh_too or not fresh)
        )
        for given in list(islice(wanting, max(0, protocol.room))):
            del self._waiting[given]
            given.set_result(protocol.take(self.id))

    def _turn_away(self, error: GatewayError) -> None:
        waiting, self._waiting = self._waiting, {}
        for given in waiting:
            if not given.done():
                given.set_exception(error)


def access_of(config: ReplicaConfig, upstream: UpstreamConfig) -> Hashable:
    """Everything that a connection to the replica depends on. Raises ConfigError."""
    return (
        identity((config.url, config.protocol, config.tls, config.api_key)),
        config.data_parallel_rank,
        (upstream.timeouts.connect_s, upstream.timeouts.tls_s),
        upstream.pool,
        upstream.http2_engine,
    )
