"""Accepted connections on their way to their first request: PROXY header, then TLS handshake.

A connection costs memory and CPU from here on and is nobody's yet, so there are only so many at a
time, with a deadline. A handshake begins when the client has spoken and it is its turn, a few in
each pass of the loop: a thousand clients that speak all at once would otherwise hold up every
stream for half a second. What fails here is counted by its reason and not logged: anybody can make
it fail.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from functools import partial

from core.clock import Clock
from core.metrics import Metrics
from core.tasks import spawn
from proxy.listen.proxy_protocol import HEAD_BYTES, ProxyHeaderError, rest_length, source_address

PER_PASS = 2
"""Handshakes begun in one pass of the loop; each takes up to half a millisecond."""
_NEVER_S = 86_400.0  # the event loop's own deadline, which it must have


class Arrival:
    """One connection. `peer` is who connected, and once a PROXY header was read whom that names;
    `started_at` is monotonic."""

    __slots__ = ("peer", "started_at", "task")

    def __init__(self, peer: str, started_at: float) -> None:
        self.peer = peer
        self.started_at = started_at
        self.task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Arrival from {self.peer}>"


class Arrivals:
    """Those of one worker. `make(peer, arrived_at)` makes the protocol that takes over; with TLS it
    is told when the connection was accepted, else None. `moved(before, after)`
    is called when an arrival's address turns out to be another one, and False then closes it;
    `ended(peer)` when an arrival has become a connection, or has failed."""

    def __init__(
        self,
        make: Callable[[str, float | None], asyncio.Protocol],
        *,
        moved: Callable[[str, str], bool],
        ended: Callable[[str], None],
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._make = make
        self._moved = moved
        self._ended = ended
        self._now = clock
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._arriving: dict[Arrival, None] = {}  # the oldest first
        self._failures = metrics.counter(
            "headrace_handshake_failures_total",
            "Connections that ended before their first request, by reason",
            ("reason",),
        )

    def __repr__(self) -> str:
        return f"<Arrivals {len(self._arriving)}>"

    def __len__(self) -> int:
        return len(self._arriving)

    def begin(
        self,
        sock: socket.socket,
        peer: str,
        context: ssl.SSLContext | None,
        *,
        proxy_header: bool,
    ) -> None:
        """Take over an accepted socket."""
        arrival = Arrival(peer, self._now())
        self._arriving[arrival] = None
        arrival.task = spawn(self._arrive(arrival, sock, context, proxy_header), "arrival")

    def end_slow(self, now: float, patience_s: float, reason: str) -> None:
        """End those that have taken longer than that."""
        for arrival in self._arriving:
            if now - arrival.started_at < patience_s:
                return
            if arrival.task is not None and arrival.task.cancel():
                self._failures.labels(reason).inc()

    async def _arrive(
        self,
        arrival: Arrival,
        sock: socket.socket,
        context: ssl.SSLContext | None,
        proxy_header: bool,
    ) -> None:
        try:
            if proxy_header and not await self._read_header(arrival, sock):
                sock.close()
                return
            if context is not None:
                await self._first_bytes(sock)
                await self._turn()
            await self._loop.connect_accepted_socket(
                partial(self._make, arrival.peer, None if context is None else arrival.started_at),
                sock,
                ssl=context,
                ssl_handshake_timeout=_NEVER_S if context is not None else None,
            )
        except asyncio.CancelledError:
            sock.close()  # unless a transport has it, which then closes it
            raise
        except (OSError, ProxyHeaderError) as error:
            sock.close()
            self._failures.labels(_reason(error)).inc()
        finally:
            del self._arriving[arrival]
            self._ended(arrival.peer)

    async def _read_header(self, arrival: Arrival, sock: socket.socket) -> bool:
        head = await self._receive(sock, HEAD_BYTES)
        rest = await self._receive(sock, rest_length(head))
        source = source_address(head, rest)
        if source is None or source == arrival.peer:
            return True
        before, arrival.peer = arrival.peer, source
        return self._moved(before, source)

    async def _receive(self, sock: socket.socket, size: int) -> bytes:
        """Exactly so many bytes: what follows is TLS's."""
        data = b""
        while len(data) < size:
            more = await self._loop.sock_recv(sock, size - len(data))
            if not more:
                raise ConnectionResetError
            data += more
        return data

    async def _first_bytes(self, sock: socket.socket) -> None:
        """Until the client has sent something, which stays unread."""
        try:
            sock.recv(1, socket.MSG_PEEK)
            return
        except BlockingIOError:
            pass
        heard = self._loop.create_future()

        def note() -> None:
            self._loop.remove_reader(sock)
            if not heard.done():  # else it was cancelled in this very pass of the loop
                heard.set_result(None)

        self._loop.add_reader(sock, note)
        try:
            await heard
        except asyncio.CancelledError:
            self._loop.remove_reader(sock)
            raise

    async def _turn(self) -> None:
        turn = self._loop.create_future()
        if not self._waiting:
            self._loop.call_soon(self._next)
        self._waiting.append(turn)
        await turn

    def _next(self) -> None:
        for _ in range(min(PER_PASS, len(self._waiting))):
            turn = self._waiting.popleft()
            if not turn.done():  # else it was cancelled
                turn.set_result(None)
        if self._waiting:
            self._loop.call_soon(self._next)


def _reason(error: Exception) -> str:
    """One of few words: what OpenSSL names, and what can happen to sockets."""
    if isinstance(error, ProxyHeaderError):
        return f"proxy_header_{error}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or "tls").lower()
    return "reset" if isinstance(error, ConnectionError) else "failed"
