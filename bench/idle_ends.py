"""What stands at both ends of `bench.idle`: the upstream, and the clients of one process.

Both are processes of their own: the upstream is told by SIGUSR1 to end all streams, the clients
are told what to do by lines of JSON.
"""

from __future__ import annotations

import asyncio
import re
import signal
import ssl
import sys
import time
from typing import ClassVar, cast

import uvloop

from bench.processes import obey, open_as_many_as_may_be

AT_ONCE = 32

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_EVENT = (
    b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,'
    b'"delta":{"content":" x"},"finish_reason":null}]}\n\n'
)
_DONE = b"data: [DONE]\n\n"
_REQUEST = (
    "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    "authorization: Bearer {token}\r\ncontent-length: {length}\r\n\r\n"
)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


# --- the upstream: one token, then silence until it is told to end (SIGUSR1)


class Upstream(asyncio.Protocol):
    held: ClassVar[set[Upstream]] = set()

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._data = b""

    def __repr__(self) -> str:
        return f"<Upstream {len(self.held)} streams held>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.held.discard(self)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        if not end or (length and len(body) < int(length[1])):
            return
        self._data = b""
        if not head.startswith(b"POST "):
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            return
        self._transport.write(_HEAD + _chunk(_EVENT))
        if b'"max_tokens":1,' in body:
            self.end()
        else:
            self.held.add(self)

    def end(self) -> None:
        self._transport.write(_chunk(_DONE) + b"0\r\n\r\n")


async def serve(ports: list[int]) -> None:
    loop = asyncio.get_running_loop()

    def end_all() -> None:
        for stream in list(Upstream.held):
            stream.end()

    loop.add_signal_handler(signal.SIGUSR1, end_all)
    for port in ports:
        await loop.create_server(Upstream, "127.0.0.1", port, backlog=4096)
    await asyncio.Event().wait()


# --- the clients of one process: told by lines of JSON what to do


class Stream(asyncio.Protocol):
    """One connection with one stream."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._transport: asyncio.Transport
        self._tail = b""
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.state = "open"

    def __repr__(self) -> str:
        return f"<Stream {self.state}>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-400:]
        if not self.first.done() and _EVENT in self._tail:
            self.first.set_result(None)
        if self._tail.endswith(b"0\r\n\r\n") and _DONE in self._tail:
            self.state = "complete"

    def connection_lost(self, exc: Exception | None) -> None:
        if self.state == "open":
            self.state = "broken"
        if not self.first.done():
            self.first.set_exception(ConnectionResetError(repr(self._tail[:200])))


class Clients:
    """Those of one process; they connect from `source`."""

    def __init__(self, port: int, authority: str, token: str, source: str) -> None:
        self._port = port
        self._context = ssl.create_default_context(cafile=authority)
        self._token = token
        self._source = source
        self._streams: list[Stream] = []

    def __repr__(self) -> str:
        return f"<Clients {len(self._streams)} from {self._source}>"

    async def open(self, count: int) -> dict[str, object]:
        left = iter(range(count))

        async def some() -> None:
            for _ in left:
                await self._open_one(self._body(2))

        await asyncio.gather(*[some() for _ in range(AT_ONCE)])
        return {"open": len(self._streams)}

    async def probe(self, count: int) -> dict[str, object]:
        """Short requests, one after the other, each on a new connection: the times from sending
        to the first token, in ms."""
        times = []
        for _ in range(count):
            stream = Stream(self._body(1))
            began_at = time.perf_counter()
            transport, _ = await self._connect(stream)
            connected_at = time.perf_counter()
            await asyncio.wait_for(stream.first, 30)
            now = time.perf_counter()
            times.append(((now - connected_at) * 1e3, (now - began_at) * 1e3))
            transport.close()
        return {"first": [first for first, _ in times], "whole": [whole for _, whole in times]}

    async def count(self) -> dict[str, object]:
        states = [stream.state for stream in self._streams]
        return {state: states.count(state) for state in ("open", "complete", "broken")}

    async def close(self) -> dict[str, object]:
        for stream in self._streams:
            stream.close()
        self._streams.clear()
        await asyncio.sleep(1)
        return {}

    async def _open_one(self, request: bytes) -> None:
        stream = Stream(request)
        self._streams.append(stream)
        await self._connect(stream)
        await asyncio.wait_for(stream.first, 60)

    async def _connect(self, stream: Stream) -> tuple[asyncio.Transport, asyncio.Protocol]:
        return await asyncio.get_running_loop().create_connection(
            lambda: stream,
            "127.0.0.1",
            self._port,
            ssl=self._context,
            server_hostname="localhost",
            local_addr=(self._source, 0),
        )

    def _body(self, tokens: int) -> bytes:
        body = (
            f'{{"model":"demo","stream":true,"max_tokens":{tokens},'
            '"messages":[{"role":"user","content":"Say nothing for a long while."}]}'
        )
        return (_REQUEST.format(token=self._token, length=len(body)) + body).encode()


def main() -> None:
    open_as_many_as_may_be()
    role, *arguments = sys.argv[1:]
    if role == "upstream":
        uvloop.run(serve([int(port) for port in arguments]))
    port, authority, token, source = arguments
    uvloop.run(obey(Clients(int(port), authority, token, source)))


if __name__ == "__main__":
    main()
