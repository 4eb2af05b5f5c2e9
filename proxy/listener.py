"""Accepts client connections and keeps what they share: limits, deadlines, counts, draining."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from email.utils import formatdate
from typing import Any

from core.errors import GatewayError
from core.exchange import Request
from core.metrics import Metrics
from core.tasks import running, spawn
from proxy.config import ListenLimits, ListenTimeouts
from proxy.flow import Watchdog
from proxy.http1 import Http1Connection
from proxy.http1_exchange import Http1Exchange
from proxy.tls import ServerTls
from proxy.tls_session import TlsSession
from proxy.turns import ReadTurns

Handler = Callable[[Http1Exchange], Coroutine[Any, Any, None]]
RefusalLog = Callable[[Http1Exchange, GatewayError], None]


class Listener:
    """All client connections of one worker."""

    def __init__(
        self,
        *,
        handler: Handler,
        on_refused: RefusalLog,
        watchdog: Watchdog,
        timeouts: ListenTimeouts,
        limits: ListenLimits,
        max_connections: int,
        metrics: Metrics,
        tls: ServerTls | None = None,
    ) -> None:
        self.tls = tls
        self.loop = asyncio.get_running_loop()
        self.now = time.monotonic
        self.read_turns = ReadTurns()
        self.timeouts = timeouts
        self.limits = limits
        self.draining = False
        self.date = b""
        self.refused = on_refused
        self._handler = handler
        self._max_connections = max_connections
        self._watchdog = watchdog
        self._connections: set[Http1Connection] = set()
        self._per_address: Counter[str] = Counter()
        self._servers: list[asyncio.AbstractServer] = []
        self._open = metrics.gauge(
            "headrace_downstream_connections", "Open client connections"
        ).labels()
        self._refusals = metrics.counter(
            "headrace_downstream_connections_refused_total",
            "Client connections closed at once because a limit was reached",
            ("limit",),
        )
        self._date_second = 0.0
        watchdog.every_tick(self._update_date)
        self._update_date(self.now())

    def __repr__(self) -> str:
        return f"<Listener connections={len(self._connections)} draining={self.draining}>"

    async def serve(self, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        """Accept on a bound and listening socket."""
        timeout = self.timeouts.handshake_s if context is not None else None
        make = (
            self.loop.create_unix_server
            if sock.family == socket.AF_UNIX
            else self.loop.create_server
        )
        self._servers.append(
            await make(
                lambda: Http1Connection(self),
                sock=sock,
                ssl=context,
                ssl_handshake_timeout=timeout,
                backlog=4096,
            )
        )

    async def drain(self, grace_s: float) -> None:
        """Stop accepting, let exchanges finish within `grace_s`, then cut what is left."""
        self.draining = True
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.shut_idle()
        busy = running("exchange")
        if busy:
            _, late = await asyncio.wait(busy, timeout=grace_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=1.0)
        for connection in list(self._connections):
            connection.shut_idle()

    # --- called by connections

    def opened(self, connection: Http1Connection, peer: str) -> bool:
        """Count a connection in; False: a limit is reached and it must be closed."""
        self._connections.add(connection)
        self._per_address[peer] += 1
        self._open.set(len(self._connections))
        if len(self._connections) > self._max_connections:
            self._refusals.labels("total").inc()
            return False
        most = self.limits.max_connections_per_address
        if most is not None and self._per_address[peer] > most and peer != "unix":
            self._refusals.labels("address").inc()
            return False
        self._watchdog.add(connection)
        return True

    def closed(self, connection: Http1Connection, peer: str) -> None:
        self._connections.discard(connection)
        self._watchdog.discard(connection)
        self._per_address[peer] -= 1
        if self._per_address[peer] <= 0:
            del self._per_address[peer]
        self._open.set(len(self._connections))

    def admit(self, session: TlsSession | None, request: Request) -> None:
        """Let a request pass that may come over this connection, and note its client certificate,
        or raise GatewayError. Needed only while `tls.rules` is there."""
        if self.tls is not None:
            self.tls.admit(session, request)

    def begin(self, exchange: Http1Exchange) -> asyncio.Task[None]:
        return spawn(self._handler(exchange), "exchange", watch=False)

    def _update_date(self, now: float) -> None:
        if now - self._date_second >= 1.0 or not self.date:
            self._date_second = now
            self.date = b"date: %b\r\n" % formatdate(usegmt=True).encode("ascii")
