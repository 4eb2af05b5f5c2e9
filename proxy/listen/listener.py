"""Keeps what a worker's client connections share: limits, deadlines, counts, draining."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from email.utils import formatdate
from functools import partial
from typing import Any

from core.errors import GatewayError
from core.exchange import Request
from core.load_board import LoadBoard
from core.metrics import Metrics
from core.network import network_of
from core.tasks import running, spawn_told
from proxy.config import ListenConfig
from proxy.flow import Watchdog
from proxy.http1.connection import Http1Connection
from proxy.listen.accept import Acceptor
from proxy.listen.arrivals import Arrivals
from proxy.listen.balance import Balance
from proxy.listen.connection import FRESH_S, ClientConnection, ClientExchange
from proxy.listen.forwarded import client_address, client_scheme
from proxy.listen.negotiated import NegotiatedConnection
from proxy.listen.networks import UNIX, Networks
from proxy.listen.sockets import notice_vanished
from proxy.overload.admission import Admission
from proxy.tls.server import ServerTls
from proxy.tls.session import TlsSession
from proxy.turns import ReadTurns

HURRY_S = 2.0
"""How long a handshake may take while all places for handshakes are taken."""

Handler = Callable[[ClientExchange], Coroutine[Any, Any, None]]
LAST_WORDS_S = 1.0

RefusalLog = Callable[[ClientExchange, GatewayError], None]


class Listener:
    """All client connections of one worker, the one of `index` on the `board`. It holds at most
    `most_connections` itself."""

    def __init__(
        self,
        *,
        handler: Handler,
        on_refused: RefusalLog,
        watchdog: Watchdog,
        settings: ListenConfig,
        admission: Admission,
        board: LoadBoard,
        index: int,
        most_connections: int,
        metrics: Metrics,
        tls: ServerTls | None = None,
    ) -> None:
        self.tls = tls
        self.loop = asyncio.get_running_loop()
        self.now = time.monotonic
        self.read_turns = ReadTurns()
        self.date = b""
        self._sockets: list[socket.socket] = []
        self.refused = on_refused
        self.admission = admission
        self.left = 0  # connections so far that are over
        self._handler = handler
        self._most_connections = most_connections
        self._watchdog = watchdog
        self._connections: dict[ClientConnection, None] = {}  # the oldest first
        self._per_address: Counter[str] = Counter()
        self._board = board
        self._load = board.for_worker(index)
        self._load.clear()  # of what a dead predecessor left
        balance = Balance(self._load, board.others(index))
        self._acceptor = Acceptor(
            self._accepted, load=self._load, balance=balance, clock=self.now, metrics=metrics
        )
        self._arrivals = Arrivals(
            self._make_protocol,
            moved=self._move,
            ended=self._arrived,
            clock=self.now,
            metrics=metrics,
        )
        self._open = metrics.gauge(
            "headrace_downstream_connections", "Open client connections"
        ).labels()
        self._refusals = metrics.counter(
            "headrace_downstream_connections_refused_total",
            "Client connections closed at once because of a limit",
            ("limit",),
        )
        self.http2_floods = metrics.counter(
            "headrace_http2_floods_total",
            "HTTP/2 connections ended because their client exceeded a budget",
            ("budget",),
        )
        self._date_second = 0.0
        self._empty = asyncio.Event()
        self.configure(settings)
        watchdog.every_tick(self._tick)
        self._update_date(self.now())

    def __repr__(self) -> str:
        return f"<Listener connections={len(self._connections)} draining={self.draining}>"

    def configure(self, settings: ListenConfig) -> None:
        """Use these settings for whatever begins from now on."""
        self.timeouts = settings.timeouts
        self.limits = self.admission.limits = settings.limits
        self._http2_engine = settings.http2_engine
        self._trusted = Networks(settings.trusted_proxies)
        self._proxy_header = settings.proxy_protocol == "required"
        for sock in self._sockets:
            notice_vanished(sock, self.timeouts.write_idle_s)

    @property
    def draining(self) -> bool:
        return self.admission.draining

    @property
    def keep_alive(self) -> bool:
        """Whether a connection may wait for another request after its answer."""
        return self.admission.keep_alive and not self.draining

    async def serve(self, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        """Accept on a bound and listening socket."""
        self._load.beat(self.now())
        notice_vanished(sock, self.timeouts.write_idle_s)
        self._sockets.append(sock)
        self._acceptor.listen(sock, context)

    def announce_end(self) -> None:
        """From now on answers end their connections, so that clients go elsewhere in time."""
        self.admission.draining = True

    def stop_accepting(self) -> None:
        self._acceptor.close()

    async def drain(self, grace_s: float) -> None:
        """Stop accepting, let all that has begun finish within `grace_s`, then cut what is left:
        streams get an error event, and LAST_WORDS_S to be rid of it."""
        self.announce_end()
        self.stop_accepting()
        for within_s in (min(grace_s, FRESH_S), max(0.0, grace_s - FRESH_S)):
            for connection in list(self._connections):
                if not connection.fresh:
                    connection.shut_idle()
            if await self._emptied(within_s):
                return
        for task in running("exchange"):
            task.cancel()
        await asyncio.sleep(0)
        for connection in list(self._connections):
            connection.shut_idle()
        await self._emptied(LAST_WORDS_S)

    async def _emptied(self, within_s: float) -> bool:
        """Whether no connection is left within that time."""
        self._empty.clear()
        self._count()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), within_s)
        return self._empty.is_set()

    def pause(self, reason: str) -> None:
        """Accept no connections until `resume`."""
        self._acceptor.pause(reason)

    def resume(self, reason: str) -> None:
        self._acceptor.resume(reason)

    def shut_idle(self, most: int) -> None:
        """Close connections that wait for a request, the oldest ones, up to `most`."""
        for connection in list(self._connections):
            if connection.idle:
                connection.shut_idle()
                most -= 1
                if most <= 0:
                    return

    # --- a connection begins

    def _make_protocol(self, peer: str, arrived_at: float | None) -> asyncio.Protocol:
        if self._http2_engine == "off":
            return Http1Connection(self, peer, arrived_at)
        return NegotiatedConnection(self, peer, self._http2_engine, arrived_at)

    def _accepted(
        self, sock: socket.socket, address: object, context: ssl.SSLContext | None
    ) -> None:
        peer = str(address[0]) if isinstance(address, tuple) else UNIX
        limit = self._limit_reached(peer)
        if limit is not None:
            self._refusals.labels(limit).inc()
            sock.close()
            return
        self._per_address[network_of(peer)] += 1
        self._load.count_accepted()
        self._arrivals.begin(sock, peer, context, proxy_header=self._proxy_header)
        if len(self._arrivals) >= self.limits.max_handshakes:
            self._acceptor.pause("handshakes")
        self._count()

    def _limit_reached(self, peer: str) -> str | None:
        if self._proxy_header and peer not in self._trusted:
            return "untrusted"
        if self._load.connections >= self._most_connections:
            return "worker"
        most = self.limits.max_connections
        if most is not None and self._board.connections() >= most:
            return "total"
        return "address" if self._is_crowded(peer) else None

    def _is_crowded(self, peer: str) -> bool:
        """Trusted proxies and Unix sockets stand for many clients, and so have no limit."""
        most = self.limits.max_connections_per_address
        if most is None or self._per_address[network_of(peer)] < most:
            return False
        return peer != UNIX and peer not in self._trusted

    def _move(self, before: str, after: str) -> bool:
        """A PROXY header says whose connection it is; False: that one has too many."""
        self._leave(before)
        crowded = self._is_crowded(after)
        self._per_address[network_of(after)] += 1
        if crowded:
            self._refusals.labels("address").inc()
        return not crowded

    def _arrived(self, peer: str) -> None:
        self._leave(peer)
        if len(self._arrivals) < self.limits.max_handshakes:
            self._acceptor.resume("handshakes")
        self._count()

    def _leave(self, peer: str) -> None:
        network = network_of(peer)
        self._per_address[network] -= 1
        if self._per_address[network] <= 0:
            del self._per_address[network]

    def _count(self) -> None:
        here = len(self._arrivals) + len(self._connections)
        self._load.set_connections(here)
        self._open.set(len(self._connections))
        if self.draining and not here and not self.admission.in_flight:
            self._empty.set()

    # --- called by connections

    def opened(self, connection: ClientConnection, peer: str) -> None:
        """Count a connection in, to be counted out by `closed`."""
        self._connections[connection] = None
        self._per_address[network_of(peer)] += 1
        self._watchdog.add(connection)
        self._count()

    def closed(self, connection: ClientConnection, peer: str) -> None:
        self._connections.pop(connection, None)
        self.left += 1
        self._watchdog.discard(connection)
        self._leave(peer)
        self._count()

    def admit(self, session: TlsSession | None, request: Request) -> None:
        """Let a request pass that may come over this connection, and note its client certificate,
        or raise GatewayError. Needed only while `tls.rules` is there."""
        if self.tls is not None:
            self.tls.admit(session, request)

    def begin(self, exchange: ClientExchange) -> asyncio.Task[None]:
        request = exchange.request
        if self._trusted:
            peer, headers = request.peer, request.headers
            request.scheme = client_scheme(peer, headers, self._trusted)
            request.peer = client_address(peer, headers, self._trusted)
        admission = self.admission
        held = len(request.body)
        admission.in_flight += 1
        admission.hold(held)
        self._load.set_exchanges(admission.in_flight)  # at once: others compare with it
        return spawn_told(self._handler(exchange), "exchange", partial(self._ended, held))

    def _ended(self, held: int) -> None:
        admission = self.admission
        admission.in_flight -= 1
        admission.hold(-held)
        self._load.set_exchanges(admission.in_flight)
        if self.draining:
            self._count()

    # --- every tick

    def _tick(self, now: float) -> None:
        self._load.beat(now)
        self.admission.publish()
        self._update_date(now)
        patience_s = self.timeouts.handshake_s
        if len(self._arrivals) >= self.limits.max_handshakes:
            self._arrivals.end_slow(now, min(HURRY_S, patience_s), "no_room")
        self._arrivals.end_slow(now, patience_s, "timeout")

    def _update_date(self, now: float) -> None:
        if now - self._date_second >= 1.0 or not self.date:
            self._date_second = now
            self.date = b"date: %b\r\n" % formatdate(usegmt=True).encode("ascii")
