"""Connections to what is tested: HTTP/1.1 with one request at a time. Performs.

A lane is a protocol on a transport, so that a piece of an answer costs one call. TCP and TLS are
opened one after the other, to be timed apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from loadtest.answer_reader import AnswerReader
from loadtest.record import Opening


class ConnectError(Exception):
    """No connection: `problem` is "connect" or "tls"."""

    def __init__(self, problem: str, detail: str) -> None:
        super().__init__(detail)
        self.problem = problem


class ResumingContext(ssl.SSLContext):
    """A client context whose connections resume the session that was `kept` last."""

    kept: ssl.SSLSession | None = None

    def wrap_bio(self, *arguments: Any, **keywords: Any) -> ssl.SSLObject:
        return super().wrap_bio(*arguments, **{**keywords, "session": self.kept})


def client_context(*, resume: bool, ca_file: str | None, insecure: bool) -> ssl.SSLContext:
    """OSError or ssl.SSLError when the file cannot be read."""
    context: ssl.SSLContext
    context = (ResumingContext if resume else ssl.SSLContext)(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif ca_file:
        context.load_verify_locations(ca_file)
    else:
        context.load_default_certs()
    return context


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go: `path` is that of the chat completions."""

    host: str
    port: int
    path: str
    authority: str
    tls: ssl.SSLContext | None


def parse_target(url: str, tls: ssl.SSLContext | None) -> Target:
    """ValueError says what is wrong with the URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url}: give a URL such as https://localhost:8443")
    secure = parts.scheme == "https"
    path = parts.path.rstrip("/")
    if not path.endswith("/chat/completions"):
        path += "/chat/completions" if path.endswith("/v1") else "/v1/chat/completions"
    port = parts.port or (443 if secure else 80)
    authority = parts.netloc.rpartition("@")[2]
    return Target(parts.hostname, port, path, authority, tls if secure else None)


class Exchange:
    """One request on a lane. `ended` is called once, after which the lane may be used again.

    leave_after: pieces of content after which the client leaves. pause_s: between two reads.
    """

    def __init__(
        self,
        reader: AnswerReader,
        ended: Callable[[Exchange], None],
        leave_after: int | None = None,
        pause_s: float = 0.0,
    ) -> None:
        self.reader = reader
        self.ended = ended
        self.leave_after = leave_after
        self.pause_s = pause_s
        self.sent_at = 0.0
        self.left = False
        self.untouched = True

    def __repr__(self) -> str:
        return f"<Exchange {self.reader!r} left={self.left}>"


class Lane(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._exchange: Exchange | None = None
        self.used = False
        self.open = True

    def __repr__(self) -> str:
        return f"<Lane open={self.open} {self._exchange!r}>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def ask(self, request: bytes, exchange: Exchange) -> None:
        self._exchange = exchange
        exchange.sent_at = time.perf_counter()
        self._transport.write(request)
        if exchange.leave_after == 0:
            asyncio.get_running_loop().call_soon(self.leave)

    def leave(self) -> None:
        """The client leaves before the answer has ended."""
        exchange = self._exchange
        if exchange is not None:
            exchange.left = True
            self.abort()
            self._end(exchange)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            self.abort()  # nothing was asked
            return
        reader = exchange.reader
        exchange.untouched = False
        reader.feed(data, time.perf_counter())
        if reader.complete:
            if not reader.keep_alive:
                self.abort()
            self._end(exchange)
        elif exchange.leave_after is not None and reader.pieces >= exchange.leave_after:
            self.leave()
        elif exchange.pause_s:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(exchange.pause_s, self._read_on)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        exchange = self._exchange
        if exchange is not None:
            exchange.reader.lost()
            self._end(exchange)

    def abort(self) -> None:
        self.open = False
        self._transport.abort()

    def drop(self) -> None:
        """End it and tell nobody."""
        self._exchange = None
        self.abort()

    def tls(self) -> ssl.SSLObject | None:
        found: ssl.SSLObject | None = self._transport.get_extra_info("ssl_object")
        return found

    def keep_session(self, context: ssl.SSLContext | None) -> None:
        """Tickets of TLS 1.3 come after the handshake: take what is there by now."""
        if isinstance(context, ResumingContext):
            tls = self.tls()
            session = tls.session if tls is not None else None
            if session is not None and session.has_ticket:
                context.kept = session

    def _read_on(self) -> None:
        if self.open and not self._transport.is_reading():
            self._transport.resume_reading()

    def _end(self, exchange: Exchange) -> None:
        self._exchange = None
        self.used = True
        self._read_on()
        exchange.ended(exchange)


class Lanes:
    """Idle connections to one target, and new ones."""

    def __init__(self, target: Target, reuse: bool, opened: Callable[[Opening], None]) -> None:
        self._target = target
        self._reuse = reuse
        self._opened = opened
        self._idle: list[Lane] = []

    def __repr__(self) -> str:
        return f"<Lanes to {self._target.authority} idle={len(self._idle)}>"

    def take(self) -> Lane | None:
        """An idle connection, the one used last."""
        while self._idle:
            lane = self._idle.pop()
            if lane.open:
                return lane
        return None

    def give_back(self, lane: Lane) -> None:
        if not lane.open:
            return
        lane.keep_session(self._target.tls)
        if self._reuse:
            self._idle.append(lane)
        else:
            lane.abort()

    async def connect(self) -> Lane:
        """ConnectError."""
        loop, target = asyncio.get_running_loop(), self._target
        began = time.perf_counter()
        try:
            peer = await self._reach(loop)
        except OSError as error:
            raise ConnectError("connect", str(error)) from error
        connected = time.perf_counter()
        try:
            _, lane = await loop.create_connection(
                Lane,
                sock=peer,
                ssl=target.tls,
                server_hostname=target.host if target.tls else None,
            )
        except OSError as error:
            peer.close()
            raise ConnectError("tls" if target.tls else "connect", str(error)) from error
        ended = time.perf_counter()
        tls = lane.tls()
        tls_s = ended - connected if tls is not None else 0.0
        resumed = bool(tls is not None and tls.session_reused)
        self._opened(Opening(began, connected - began, tls_s, resumed))
        return lane

    async def _reach(self, loop: asyncio.AbstractEventLoop) -> socket.socket:
        """Connect by TCP to the first address that answers. OSError."""
        target = self._target
        found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        failed: OSError = OSError("no address")
        for family, kind, protocol, _, address in found:
            peer = socket.socket(family, kind, protocol)
            try:
                peer.setblocking(False)
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await loop.sock_connect(peer, address)
            except OSError as error:
                peer.close()
                failed = error
            except BaseException:
                peer.close()
                raise
            else:
                return peer
        raise failed

    def close(self) -> None:
        for lane in self._idle:
            with contextlib.suppress(RuntimeError):  # the loop may be gone already
                lane.abort()
        self._idle.clear()
