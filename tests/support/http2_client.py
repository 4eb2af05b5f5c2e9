"""An HTTP/2 client on a socket that sends frames written by hand, good ones and bad ones."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any

import orjson
from http2_frames import (
    PREFACE,
    SETTINGS_ACK,
    Answer,
    Frame,
    Reader,
    Writer,
    ping,
    settings,
    window_update,
)

from core.exchange import Header
from core.http2 import frames

CHAT: list[Header] = [
    (b":method", b"POST"),
    (b":scheme", b"https"),
    (b":authority", b"localhost"),
    (b":path", b"/v1/chat/completions"),
    (b"content-type", b"application/json"),
]


class Http2Client:
    """One connection. `over` once the server closed it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = Reader()
        self.head = Writer()
        self.over = False
        self._next = 1

    @classmethod
    async def open(
        cls, port: int, context: ssl.SSLContext | None = None, own_settings: bytes = settings()
    ) -> Http2Client:
        name = "localhost" if context else None
        if context is not None:
            context.set_alpn_protocols(["h2"])
        client = cls(
            *await asyncio.open_connection(
                "127.0.0.1", port, ssl=context, server_hostname=name, limit=2**24
            )
        )
        client.send(PREFACE, own_settings, window_update(0, 2**30))
        await client.until(lambda: client.of(frames.SETTINGS))
        return client

    @property
    def alpn(self) -> str | None:
        found: str | None = self._writer.get_extra_info("ssl_object").selected_alpn_protocol()
        return found

    @property
    def answers(self) -> dict[int, Answer]:
        return self._frames.answers

    def of(self, kind: int) -> list[Frame]:
        return self._frames.of(kind)

    @property
    def goaway(self) -> int | None:
        """The code of the last GOAWAY."""
        found = self.of(frames.GOAWAY)
        return found[-1].code if found else None

    def send(self, *pieces: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            self._writer.write(b"".join(pieces))

    async def flush(self) -> None:
        """Until what was sent has left; `over` when the server is gone."""
        try:
            await self._writer.drain()
        except ConnectionError:
            self.over = True

    def next_stream(self) -> int:
        self._next += 2
        return self._next - 2

    def ask(self, document: Any, headers: Sequence[Header] = CHAT) -> int:
        """Send a request whole; its stream."""
        stream_id = self.next_stream()
        body = document if isinstance(document, bytes) else orjson.dumps(document)
        self.send(self.head.request(stream_id, headers, body))
        return stream_id

    async def answer(self, stream_id: int, within_s: float = 10.0) -> Answer:
        def ended() -> bool:
            answer = self.answers.get(stream_id)
            return answer is not None and (answer.complete or answer.reset is not None)

        await self.until(ended, within_s)
        return self.answers[stream_id]

    async def until(self, true: Callable[[], Any], within_s: float = 10.0) -> None:
        """Read until something is `true` or the connection is over."""
        give_up_at = time.monotonic() + within_s
        while not true() and not self.over:
            await self.read(give_up_at - time.monotonic())

    async def read(self, within_s: float) -> None:
        """What comes next; SETTINGS and PING are answered."""
        try:
            async with asyncio.timeout(within_s):
                received = await self._reader.read(2**20)
        except (ConnectionError, ssl.SSLError):
            received = b""
        if not received:
            self.over = True
            return
        for one in self._frames.feed(received):
            if one.kind == frames.SETTINGS and not one.flags & frames.ACK:
                self.send(SETTINGS_ACK)
            elif one.kind == frames.PING and not one.flags & frames.ACK:
                self.send(ping(one.payload, ack=True))

    def close(self) -> None:
        self._writer.close()
