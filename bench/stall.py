"""`python -m bench.stall`: do huge prompts hold up the streams beside them?

One stream with a token every 5 ms runs through the gateway, first alone and then while other
clients send chats of 2 MB, all at once. Each token carries the instant at which the upstream sent
it, and the client notes the instant at which it came. Printed are the greatest gap between tokens
in the client, and the greatest time that a token was on its way: the gap also holds what the
machine did to upstream and client, the second is the gateway's alone.

The gateway has one worker, TLS, tokens, limits in Redis and a tokenizer. Upstream, load and the
timing client are processes of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import re
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import uvloop

from bench.client import WORDS
from bench.processes import BenchError, Processes, benchmark
from bench.rig import start_watched

PACE_S = 0.005
QUIET_TOKENS = 400
MANY_TOKENS = 100_000  # the stream beside the load is left when the load is over
CHATS, CHAT_BYTES = 20, 2_000_000
BAR_MS = 20.0

_SENT_AT = re.compile(rb'"sent_at_ns":(\d+)')
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_REQUEST = (
    "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    "authorization: Bearer {token}\r\ncontent-length: {length}\r\n\r\n"
)


# --- the upstream: it reads no prompt, so that it is never late itself


class Upstream(asyncio.Protocol):
    """A paced stream for a small request, one token for a large one."""

    pace_s = PACE_S

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._left_to_read = 0
        self._large = False
        self._next_at = 0.0
        self._left = 0

    def __repr__(self) -> str:
        return f"<Upstream {self._left} tokens to go>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self._left_to_read:
            head, _, data = data.partition(b"\r\n\r\n")
            if not head.startswith(b"POST "):
                self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                return
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
            self._left_to_read = int(length[1]) if length else 0
            self._large = self._left_to_read > CHAT_BYTES // 2
            tokens = re.search(rb'"max_tokens": *(\d+)', data)
            self._left = 1 if self._large or not tokens else int(tokens[1])
        self._left_to_read -= len(data)
        if self._left_to_read <= 0:
            self._left_to_read = 0
            self._transport.write(_HEAD)
            self._next_at = self._loop.time()
            self._token()

    def _token(self) -> None:
        if self._transport.is_closing():
            return
        event = (
            b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,'
            b'"delta":{"content":" x"},"finish_reason":null}],"sent_at_ns":%d}\n\n'
        ) % time.monotonic_ns()
        self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        self._left -= 1
        if self._left > 0:
            self._next_at = max(self._next_at + self.pace_s, self._loop.time())
            self._loop.call_at(self._next_at, self._token)
        else:
            self._transport.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


async def serve(ports: Sequence[int], upstream: type[Upstream] = Upstream) -> None:
    loop = asyncio.get_running_loop()
    for port in ports:
        await loop.create_server(upstream, "127.0.0.1", port, backlog=4096)
    await asyncio.Event().wait()


# --- the load: chats of 2 MB, all different, all at once


async def load(port: int, authority: str, token: str) -> None:
    context = ssl.create_default_context(cafile=authority)
    rng = random.Random(1)
    phrases = [" ".join(rng.choices(WORDS, k=9)) for _ in range(997)]
    bodies = []
    for number in range(CHATS):
        text = f"{number} " + " ".join(rng.choices(phrases, k=CHAT_BYTES // 50))
        bodies.append(
            '{"model":"demo","stream":true,"max_tokens":1,"messages":[{"role":"user","content":"'
            f'{text[:CHAT_BYTES]}"}}]}}'
        )
    statuses = await asyncio.gather(*[_chat(port, context, token, body) for body in bodies])
    wrong = [status for status in statuses if status != b"200"]
    if wrong:
        sys.exit(f"chats were answered {wrong[0].decode()}")


async def _chat(port: int, context: ssl.SSLContext, token: str, body: str) -> bytes:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname="localhost"
    )
    writer.write((_REQUEST.format(token=token, length=len(body)) + body).encode())
    answer = await reader.readuntil(b"\r\n\r\n")
    if answer.startswith(b"HTTP/1.1 200"):
        await reader.readuntil(b"[DONE]")
    writer.close()
    return answer.split(b" ", 2)[1]


# --- the stream that is watched


@dataclass(frozen=True, slots=True)
class Watched:
    """Milliseconds: between tokens in the client, and from upstream to client."""

    tokens: int
    greatest_gap_ms: float
    greatest_way_ms: float
    seconds: float


class Stream:
    """A blocking client: nothing else runs in this process while it waits for a token."""

    def __init__(self, port: int, authority: str, token: str) -> None:
        self._port = port
        self._context = ssl.create_default_context(cafile=authority)
        self._token = token

    def watch(self, tokens: int, beside: subprocess.Popen[str] | None = None) -> Watched:
        """Until so many tokens came, or what runs beside has ended."""
        began = time.monotonic()
        arrivals: list[int] = []
        ways: list[int] = []
        for now, sent_at in self._tokens(tokens):
            ways.append(now - sent_at)
            arrivals.append(now)
            if beside is not None and beside.poll() is not None:
                break
        gaps = [after - before for before, after in itertools.pairwise(arrivals)]
        return Watched(len(arrivals), max(gaps) / 1e6, max(ways) / 1e6, time.monotonic() - began)

    def _tokens(self, tokens: int) -> Iterator[tuple[int, int]]:
        """Arrival and sending of each, in ns of the monotonic clock that all processes share."""
        body = (
            f'{{"model":"demo","stream":true,"max_tokens":{tokens},'
            '"messages":[{"role":"user","content":"hello"}]}'
        )
        request = _REQUEST.format(token=self._token, length=len(body)) + body
        with (
            socket.create_connection(("127.0.0.1", self._port), 10) as plain,
            self._context.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            secure.sendall(request.encode())
            rest = b""
            while data := secure.recv(65_536):
                now = time.monotonic_ns()
                *events, rest = (rest + data).split(b"\n\n")
                for event in events:
                    if sent_at := _SENT_AT.search(event):
                        yield now, int(sent_at[1])
                if b"[DONE]" in rest or any(b"[DONE]" in event for event in events):
                    return
        raise BenchError(f"the stream ended early: {rest[-300:]!r}")


def run(processes: Processes, folder: Path) -> Iterator[str]:
    port, token = start_watched(processes, folder, "bench.stall")
    authority = str(folder / "ca.pem")
    stream = Stream(port, authority, token)
    stream.watch(20)
    alone = stream.watch(QUIET_TOKENS)
    yield _line("alone", alone)
    chats = processes.start(
        "load", [sys.executable, "-m", "bench.stall", "--load", str(port), authority, token]
    )
    beside = stream.watch(MANY_TOKENS, chats)
    if chats.wait():
        raise BenchError("the load failed")
    yield _line(f"beside {CHATS} chats of {CHAT_BYTES / 1e6:.0f} MB", beside)
    grew = beside.greatest_gap_ms - alone.greatest_gap_ms
    yield (
        f"stall: gap_grew_ms={grew:.1f} way_grew_ms="
        f"{beside.greatest_way_ms - alone.greatest_way_ms:.1f} bar_ms={BAR_MS:.0f}"
    )


def _line(name: str, watched: Watched) -> str:
    return (
        f"{name:26} greatest gap {watched.greatest_gap_ms:6.1f} ms, greatest way "
        f"{watched.greatest_way_ms:6.1f} ms  ({watched.tokens} tokens, {watched.seconds:.1f} s)"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.stall",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--upstream", nargs=2, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--load", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.upstream:
        uvloop.run(serve(arguments.upstream))
    if arguments.load:
        port, authority, token = arguments.load
        uvloop.run(load(int(port), authority, token))
        return 0
    with benchmark() as (processes, folder):
        for line in run(processes, folder):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
