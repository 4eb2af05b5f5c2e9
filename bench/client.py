"""The load client, a process of its own: `python -m bench.client`.

One JSON command a line on stdin, one JSON answer a line on stdout:

- `{"op": "target", "name", "port", "ca", "token", "http2_streams", "tokens", "headers",
  "quickack"}` makes a target known (`ca` null: plain HTTP; `http2_streams`: so many on each
  connection, 0 for HTTP/1.1; `tokens`: a file of tokens that requests by HTTP/1.1 have in turn;
  `headers`: further ones; `quickack`: the client's kernel acknowledges at once whatever comes)
- `{"op": "check", "name", "tokens"}` -> the events of one answer, as they came
- `{"op": "load", "name", "streams", "tokens", "seconds", "times"}` -> requests that ended, and
  errors; with `times` the time to the first token of each, in ms
- `{"op": "latency", "names", "seconds"}` -> times to the first token in ms, one list a target; the
  targets take turns, in random order, one request at a time

Every prompt is different: about a hundred tokens, put together from random phrases.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import socket
import ssl
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import uvloop

from bench.http2_client import FIRST_TOKEN, Connection, Http2Lane, Seats
from core.exchange import Header

LAST_CHUNK = b"0\r\n\r\n"
WORDS = """
the river carries water stone sand and light through a valley while people walk along its bank to
the old mill where an engine turns grain into flour please explain how a machine can learn what
language is why memory matters when many readers ask one question at the same time and which answer
would be useful clear honest short or long for them if they come from another country
""".split()  # noqa: SIM905 (prose reads better than a list)


_Protocol = TypeVar("_Protocol", bound=asyncio.Protocol)


class Target:
    """Where requests go, and how they are written."""

    def __init__(
        self,
        port: int,
        ca: str | None,
        token: str,
        http2_streams: int = 0,
        *,
        model: str = "demo",
        tokens: str = "",
        headers: dict[str, str] | None = None,
        quickack: bool = False,
    ) -> None:
        self.port = port
        self._http2_streams = http2_streams
        self._seats: Seats | None = None
        self._seated = 0
        self.tls: ssl.SSLContext | None = None
        if ca:
            self.tls = ssl.create_default_context(cafile=ca)
            self.tls.minimum_version = ssl.TLSVersion.TLSv1_3
            if http2_streams:
                self.tls.set_alpn_protocols(["h2"])
        self._random = random.Random(port)
        self._phrases = [" ".join(self._random.choices(WORDS, k=9)) for _ in range(997)]
        self._opening = f'{{"model":"{model}","stream":true,"max_tokens":'
        self._tokens = itertools.cycle(Path(tokens).read_text().split() if tokens else [token])
        self._head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
            "accept: application/json\r\ncontent-type: application/json\r\n"
            "user-agent: OpenAI/Python 3.57.0\r\n"
            + "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
            + "authorization: Bearer "
        )
        self._http2_head: list[Header] = [
            (b":method", b"POST"),
            (b":scheme", b"https"),
            (b":authority", b"localhost"),
            (b":path", b"/v1/chat/completions"),
            (b"accept", b"application/json"),
            (b"content-type", b"application/json"),
            (b"user-agent", b"OpenAI/Python 3.57.0"),
            (b"authorization", b"Bearer " + token.encode()),
        ]
        self._count = 0
        self.quickack = quickack

    def __repr__(self) -> str:
        return f"<Target port={self.port} requests={self._count}>"

    def request(self, tokens: int) -> bytes:
        body = self._body(tokens)
        token = next(self._tokens)
        return f"{self._head}{token}\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()

    def http2_request(self, tokens: int) -> tuple[list[Header], bytes]:
        body = self._body(tokens).encode()
        return [*self._http2_head, (b"content-length", b"%d" % len(body))], body

    def _body(self, tokens: int) -> str:
        self._count += 1
        text = " ".join(self._random.choices(self._phrases, k=9))
        return (
            f'{self._opening}{tokens},"messages":[{{"role":"user","content":'
            f'"{text} {self._count}"}}]}}'
        )

    async def connect(self) -> Lane | Http2Lane:
        if not self._http2_streams:
            return await self._connection(lambda: Lane(self))
        if self._seats is None or self._seated % self._http2_streams == 0:
            self._seats = Seats(self, await self.connect_http2())
        self._seated += 1
        return Http2Lane(self, self._seats)

    async def connect_http2(self) -> Connection:
        return await self._connection(Connection)

    async def _connection(self, make: Callable[[], _Protocol]) -> _Protocol:
        loop = asyncio.get_running_loop()
        name = "localhost" if self.tls else None
        _, made = await loop.create_connection(
            make, "127.0.0.1", self.port, ssl=self.tls, server_hostname=name
        )
        return made


class Lane(asyncio.Protocol):
    """One keep-alive connection with one request at a time; `ended` is told when it is over."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._transport: asyncio.Transport
        self._tail = b""
        self._busy = False
        self.reads = 0
        self._sent_at = 0.0
        self.ttft_s = 0.0
        self.failed = ""
        self.lost = False
        self.ended: Callable[[Lane], None] = lambda lane: None
        self.kept: list[bytes] | None = None

    def __repr__(self) -> str:
        return f"<Lane busy={self._busy} failed={self.failed!r}>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._socket = transport.get_extra_info("socket") if self._target.quickack else None

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if self._busy:
            self._end(f"connection lost: {exc!r}, after {self._tail!r}")

    def send(self, tokens: int) -> None:
        request = self._target.request(tokens)
        self._busy, self._tail, self.ttft_s = True, b"", 0.0
        self._sent_at = time.perf_counter()
        self._transport.write(request)

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        self.reads += 1
        if self._socket is not None:  # the kernel forgets it again
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        if self.kept is not None:
            self.kept.append(data)
        if not self._tail and not data.startswith(b"HTTP/1.1 200"):
            self._end(f"{data[:300]!r}")
            return
        if not self.ttft_s and FIRST_TOKEN in data:
            self.ttft_s = time.perf_counter() - self._sent_at
        tail = self._tail = (self._tail + data)[-64:]
        if tail.endswith(LAST_CHUNK):
            self._end("" if b"data: [DONE]" in tail and self.ttft_s else f"bad end: {tail!r}")

    def _end(self, failed: str) -> None:
        self._busy, self.failed = False, failed
        self.ended(self)


class Client:
    """Carries out the commands."""

    def __init__(self) -> None:
        self._targets: dict[str, Target] = {}
        self._lanes: dict[str, list[Lane | Http2Lane]] = {}
        self._done = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Client of {', '.join(self._targets)}>"

    async def obey(self, command: dict[str, Any]) -> dict[str, Any]:
        operation = getattr(self, command.pop("op"))
        answer: dict[str, Any] = await operation(**command)
        return answer

    async def target(self, name: str, **how: Any) -> dict[str, Any]:
        self._targets[name] = Target(**how)
        return {}

    async def check(self, name: str, tokens: int) -> dict[str, Any]:
        (lane,) = await self._connected(name, 1)
        lane.kept = []
        await self._one(lane, tokens)
        answer, lane.kept = b"".join(lane.kept).decode(), None
        return {"bytes": answer, "failed": lane.failed}

    async def load(
        self, name: str, streams: int, tokens: int, seconds: float, times: bool = False
    ) -> dict[str, Any]:
        """Closed loop: each stream asks again as soon as its answer ended, until time is up."""
        first: list[float] = []
        lanes, finished = await self._connected(name, streams), asyncio.Event()
        requests, errors, running = 0, [], streams
        reads = sum(lane.reads for lane in lanes)
        began = time.perf_counter()

        def ended(lane: Lane | Http2Lane) -> None:
            nonlocal requests, running
            requests += 1
            if times:
                first.append(lane.ttft_s * 1e3)
            if lane.failed:
                errors.append(lane.failed)
            elif time.perf_counter() < began + seconds:
                lane.send(tokens)
                return
            running -= 1
            if running == 0:
                finished.set()

        for lane in lanes:
            lane.ended = ended
            lane.send(tokens)
        await finished.wait()
        took = time.perf_counter() - began
        reads = sum(lane.reads for lane in lanes) - reads
        found = {"requests": requests, "reads": reads, "seconds": took, "errors": errors[:3]}
        return found | {"ttft_ms": first} if times else found

    async def latency(self, names: list[str], seconds: float) -> dict[str, Any]:
        lanes = {name: (await self._connected(name, 1))[0] for name in names}
        times: dict[str, list[float]] = {name: [] for name in names}
        order, deadline = list(names), time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            random.shuffle(order)
            for name in order:
                await self._one(lanes[name], 1)
                if lanes[name].failed:
                    return {"failed": f"{name}: {lanes[name].failed}"}
                times[name].append(lanes[name].ttft_s * 1e3)
        return {"times_ms": times}

    async def _connected(self, name: str, count: int) -> list[Lane | Http2Lane]:
        """`count` open connections; those of earlier commands are used again."""
        lanes = self._lanes[name] = [lane for lane in self._lanes.get(name, ()) if not lane.lost]
        while len(lanes) < count:
            lanes.append(await self._targets[name].connect())
        return lanes[:count]

    async def _one(self, lane: Lane | Http2Lane, tokens: int) -> None:
        self._done.clear()
        lane.ended = lambda _: self._done.set()
        lane.send(tokens)
        async with asyncio.timeout(10):
            await self._done.wait()


async def main() -> None:
    client, loop = Client(), asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(await client.obey(json.loads(line))), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
