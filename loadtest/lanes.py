"""Connections to what is tested: HTTP/1.1 with one request at a time. Performs.

A lane is where one request at a time is asked: here a connection, in `http2_lanes` a place on one.
It is a protocol on a transport, so that a piece of an answer costs one call. TCP and TLS are opened
one after the other, to be timed apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast
from urllib.parse import urlsplit

from loadtest.answer_reader import Answer, AnswerReader
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


def client_context(
    *, resume: bool, ca_file: str | None, insecure: bool, http2: bool = False
) -> ssl.SSLContext:
    """OSError or ssl.SSLError when the file cannot be read."""
    context: ssl.SSLContext
    context = (ResumingContext if resume else ssl.SSLContext)(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2" if http2 else "http/1.1"])
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


@dataclass(frozen=True, slots=True)
class Ask:
    """What is sent: `headers` beside those that the protocol wants."""

    headers: dict[str, str]
    body: bytes

    def http1(self, target: Target) -> bytes:
        lines = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        return (
            f"POST {target.path} HTTP/1.1\r\nhost: {target.authority}\r\n{lines}"
            f"content-length: {len(self.body)}\r\n\r\n"
        ).encode("latin-1") + self.body

    def http2(self, target: Target) -> list[tuple[bytes, bytes]]:
        """The fields of the head (RFC 9113 section 8.3)."""
        fields = {
            ":method": "POST",
            ":scheme": "https" if target.tls else "http",
            ":authority": target.authority,
            ":path": target.path,
            **{name.lower(): value for name, value in self.headers.items()},
            "content-length": str(len(self.body)),
        }
        return [(name.encode(), value.encode("latin-1")) for name, value in fields.items()]


class Exchange:
    """One request on a lane. `ended` is called once, after which the lane may be used again.

    keep_text: the answer's text is wanted. leave_after: pieces of content after which the client
    leaves. pause_s: between two reads.
    """

    def __init__(
        self,
        ended: Callable[[Exchange], None],
        *,
        keep_text: bool = False,
        leave_after: int | None = None,
        pause_s: float = 0.0,
    ) -> None:
        self.ended = ended
        self.keep_text = keep_text
        self.leave_after = leave_after
        self.pause_s = pause_s
        self.reader = Answer()
        self.sent_at = 0.0
        self.left = False
        self.untouched = True

    def __repr__(self) -> str:
        return f"<Exchange {self.reader!r} left={self.left}>"

    def has_enough(self) -> bool:
        return self.leave_after is not None and self.reader.pieces >= self.leave_after


class AnyLane(Protocol):
    """`used`: it has carried a request before."""

    used: bool

    def ask(self, ask: Ask, exchange: Exchange) -> None: ...
    def leave(self) -> None:
        """The client leaves before the answer has ended."""

    def drop(self) -> None:
        """End it and tell nobody."""


class AnyLanes(Protocol):
    def take(self) -> AnyLane | None:
        """One that is there and free."""

    async def connect(self) -> AnyLane:
        """ConnectError."""

    def give_back(self, lane: Any) -> None: ...
    def close(self) -> None: ...


class Lane(asyncio.Protocol):
    """One connection."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._transport: asyncio.Transport
        self._exchange: Exchange | None = None
        self._reader = AnswerReader()
        self.used = False
        self.open = True

    def __repr__(self) -> str:
        return f"<Lane open={self.open} {self._exchange!r}>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def ask(self, ask: Ask, exchange: Exchange) -> None:
        self._exchange = exchange
        exchange.reader = self._reader = AnswerReader(exchange.keep_text)
        request = ask.http1(self._target)
        exchange.sent_at = time.perf_counter()
        self._transport.write(request)
        if exchange.leave_after == 0:
            asyncio.get_running_loop().call_soon(self.leave)

    def leave(self) -> None:
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
        reader = self._reader
        exchange.untouched = False
        reader.feed(data, time.perf_counter())
        if reader.complete:
            if not reader.keep_alive:
                self.abort()
            self._end(exchange)
        elif exchange.has_enough():
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
        self._exchange = None
        self.abort()

    def keep_session(self) -> None:
        keep_session(self._target, self._transport)

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
        lane.keep_session()
        if self._reuse:
            self._idle.append(lane)
        else:
            lane.abort()

    async def connect(self) -> Lane:
        return await open_connection(self._target, lambda: Lane(self._target), self._opened)

    def close(self) -> None:
        for lane in self._idle:
            with contextlib.suppress(RuntimeError):  # the loop may be gone already
                lane.abort()
        self._idle.clear()


_Made = TypeVar("_Made", bound=asyncio.Protocol)


async def open_connection(
    target: Target, make: Callable[[], _Made], opened: Callable[[Opening], None]
) -> _Made:
    """TCP, then TLS; `opened` is told how long each took. ConnectError."""
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    try:
        peer = await _reach(target, loop)
    except OSError as error:
        raise ConnectError("connect", str(error)) from error
    connected = time.perf_counter()
    try:
        transport, made = await loop.create_connection(
            make, sock=peer, ssl=target.tls, server_hostname=target.host if target.tls else None
        )
    except OSError as error:
        peer.close()
        raise ConnectError("tls" if target.tls else "connect", str(error)) from error
    ended = time.perf_counter()
    tls = tls_of(transport)
    tls_s = ended - connected if tls is not None else 0.0
    resumed = bool(tls is not None and tls.session_reused)
    opened(Opening(began, connected - began, tls_s, resumed))
    return made


def tls_of(transport: asyncio.BaseTransport) -> ssl.SSLObject | None:
    found: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    return found


def keep_session(target: Target, transport: asyncio.BaseTransport) -> None:
    """Tickets of TLS 1.3 come after the handshake: take what is there by now."""
    if isinstance(target.tls, ResumingContext):
        tls = tls_of(transport)
        session = tls.session if tls is not None else None
        if session is not None and session.has_ticket:
            target.tls.kept = session


async def _reach(target: Target, loop: asyncio.AbstractEventLoop) -> socket.socket:
    """Connect by TCP to the first address that answers. OSError."""
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
