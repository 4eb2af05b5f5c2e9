"""What stands at both ends of the open streams of `bench.slopes`; processes of their own.

The upstream sends `EACH` tokens every `TICK_S`, each to the next stream in turn: however many are
open, so many tokens come in all, and so many at a time. SIGUSR1 silences it, and lets it speak. The
clients of one process are told by lines of JSON what to do.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import signal
import ssl
import sys
import time
from collections import deque
from typing import cast

import uvloop

from bench.processes import obey, open_as_many_as_may_be
from bench.upstream import _HEAD, _ROLE, _TOKEN

EACH, TICK_S = 10, 0.004
AT_ONCE = 32
_SEEN = b'"content":" token"'
_REQUEST = (
    "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    "authorization: Bearer {token}\r\ncontent-length: {length}\r\n\r\n"
)
_BODY = (
    '{{"model":"demo","stream":true,"messages":[{{"role":"user","content":"Go on, {number}."}}]}}'
)


class Ring:
    """Who gets the next token."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._streams: deque[Upstream] = deque()
        self._next_at = self._loop.time()
        self._silent = False
        self._loop.add_signal_handler(signal.SIGUSR1, self._turn)
        self._tick()

    def _turn(self) -> None:
        self._silent = not self._silent

    def __repr__(self) -> str:
        return f"<Ring of {len(self._streams)}>"

    def add(self, stream: Upstream) -> None:
        self._streams.append(stream)

    def _tick(self) -> None:
        streams, left = self._streams, 0 if self._silent else min(EACH, len(self._streams))
        while left and streams:
            stream = streams.popleft()
            if stream.token():
                streams.append(stream)
                left -= 1
        self._next_at = max(self._next_at + TICK_S, self._loop.time() - 0.1)
        self._loop.call_at(self._next_at, self._tick)


class Upstream(asyncio.Protocol):
    """One connection with one stream, which ends with it."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._transport: asyncio.Transport
        self._data = b""
        self._gone = False

    def __repr__(self) -> str:
        return f"<Upstream gone={self._gone}>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone = True

    def token(self) -> bool:
        if not self._gone:
            self._transport.write(_TOKEN)
        return not self._gone

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        if not end or (length and len(body) < int(length[1])):
            return
        self._data = b""
        if head.startswith(b"POST "):
            self._transport.write(_HEAD + _ROLE + _TOKEN)
            self._ring.add(self)
        else:
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")


async def serve(ports: list[int]) -> None:
    loop, ring = asyncio.get_running_loop(), Ring()
    for port in ports:
        await loop.create_server(lambda: Upstream(ring), "127.0.0.1", port, backlog=4096)
    await asyncio.Event().wait()


class Stream(asyncio.Protocol):
    """A client's connection with its stream. `tokens` are those of all."""

    tokens = reads = 0

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._transport: asyncio.Transport
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lost = False

    def __repr__(self) -> str:
        return f"<Stream lost={self.lost}>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        Stream.reads += 1
        Stream.tokens += data.count(_SEEN)
        if not self.first.done() and _SEEN in data:
            self.first.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if not self.first.done():
            self.first.set_exception(ConnectionResetError("no stream"))

    def close(self) -> None:
        self._transport.abort()


class Clients:
    """All streams of this process, by the name of what they go through."""

    def __init__(self, ca: str, token: str) -> None:
        self._context = ssl.create_default_context(cafile=ca)
        self._token = token
        self._numbers = itertools.count()
        self._streams: dict[str, list[Stream]] = {}

    def __repr__(self) -> str:
        return f"<Clients of {', '.join(self._streams)}>"

    async def hold(self, name: str, port: int, count: int) -> dict[str, object]:
        """Open or close, until so many are open."""
        streams = self._streams.setdefault(name, [])
        for stream in streams[count:]:
            stream.close()
        del streams[count:]
        left = iter(range(count - len(streams)))

        async def some() -> None:
            for _ in left:
                streams.append(await self._open(port))

        await asyncio.gather(*[some() for _ in range(AT_ONCE)])
        return {"open": len(streams)}

    async def watch(self, name: str, seconds: float) -> dict[str, object]:
        """What came within so long."""
        tokens, reads = Stream.tokens, Stream.reads
        began = time.perf_counter()
        await asyncio.sleep(seconds)
        lost = sum(stream.lost for stream in self._streams[name])
        return {
            "tokens": Stream.tokens - tokens,
            "reads": Stream.reads - reads,
            "seconds": time.perf_counter() - began,
            "lost": lost,
        }

    async def _open(self, port: int) -> Stream:
        number = next(self._numbers)
        body = _BODY.format(number=number)
        request = (_REQUEST.format(token=self._token, length=len(body)) + body).encode()
        stream = Stream(request)
        source = (f"127.0.0.{1 + number % 4}", 0)
        await asyncio.get_running_loop().create_connection(
            lambda: stream,
            "127.0.0.1",
            port,
            ssl=self._context,
            server_hostname="localhost",
            local_addr=source,
        )
        await asyncio.wait_for(stream.first, 60)
        return stream


def main() -> None:
    open_as_many_as_may_be()
    role, *arguments = sys.argv[1:]
    if role == "upstream":
        uvloop.run(serve([int(port) for port in arguments]))
    uvloop.run(obey(Clients(*arguments)))


if __name__ == "__main__":
    main()
