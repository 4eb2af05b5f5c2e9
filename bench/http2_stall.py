"""`python -m bench.http2_stall`: does one stream of an HTTP/2 connection hold up the others?

100 streams share one connection, each with a token every 20 ms. In turns, two of them idle, or one
of the two is not read at all while the other uploads a prompt of 4 MB all the time. Printed are,
over the other 98, the 99th percentile of the time between tokens in the client, and of the time
that a token was on its way from the upstream: the least of several rounds, because what else the
machine does can only add to it.

The gateway has one worker, TLS, tokens, limits in Redis and a tokenizer. The upstream is a process
of its own; client and gateway share what the machine has.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import re
import ssl
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import uvloop

from bench.measure import quantile
from bench.processes import BenchError, Processes, benchmark
from bench.rig import start_watched
from bench.stall import Upstream, serve
from core.exchange import Header
from core.http2.engine import EngineOptions, ErrorCode
from core.http2.engines import make_engine

PACE_S = 0.02
STREAMS, MANY_TOKENS = 100, 100_000
UPLOAD_BYTES, PART_BYTES = 4_000_000, 40_000
ROUNDS, PHASE_S, WARM_S = 5, 3.0, 0.5
BAR_MS = 5.0
_WRITE_BYTES = 65_536
_OPTIONS = EngineOptions("client", stream_window=65_535, connection_window=2**30)
_SENT_AT = re.compile(rb'"sent_at_ns":(\d+)')


class SlowUpstream(Upstream):
    pace_s = PACE_S


@dataclass(slots=True)
class Tokens:
    """What came on one stream: arrivals and ways in ns."""

    arrivals: list[int]
    ways: list[int]


class Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, token: str) -> None:
        self.engine = make_engine("nghttp2", self, _OPTIONS)
        self.tokens: dict[int, Tokens] = {}
        self.unread = 0
        self.failed = ""
        self.uploads = 0
        self._upload = 0
        self._token = token
        self._transport: asyncio.Transport
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._flush()

    def data_received(self, data: bytes) -> None:
        self.engine.receive(data)
        self._flush()

    def ask(self, tokens: int) -> int:
        body = b'{"model":"demo","stream":true,"max_tokens":%d,"messages":[%b]}'
        message = b'{"role":"user","content":"number %d"}' % len(self.tokens)
        stream_id = self._open()
        self.engine.send(stream_id, body % (tokens, message), True)
        self.tokens[stream_id] = Tokens([], [])
        self._flush()
        return stream_id

    def upload(self) -> None:
        """4 MB of a prompt in so many parts; the next one begins when it was answered."""
        if not self.unread:
            return
        body = b'{"model":"demo","max_tokens":1,"messages":[{"role":"user","content":"%b"}]}'
        body %= b"x" * UPLOAD_BYTES
        self._upload = self._open()
        self._send_part(self._upload, body)

    def _send_part(self, stream_id: int, rest: bytes) -> None:
        if stream_id != self._upload:
            return
        part, rest = rest[:PART_BYTES], rest[PART_BYTES:]
        self.engine.send(stream_id, part, not rest)
        self._flush()
        if rest:
            pause_s = PHASE_S * PART_BYTES / UPLOAD_BYTES
            self._loop.call_later(pause_s, self._send_part, stream_id, rest)

    def disturb(self) -> None:
        self.unread = self.ask(MANY_TOKENS)
        self.upload()

    def leave_alone(self) -> None:
        for stream_id in (self.unread, self._upload):
            self.engine.reset(stream_id, ErrorCode.CANCEL)
        self.tokens.pop(self.unread)
        self.unread = self._upload = 0
        self._flush()

    def _open(self) -> int:
        headers: list[Header] = [
            (b":method", b"POST"),
            (b":scheme", b"https"),
            (b":authority", b"localhost"),
            (b":path", b"/v1/chat/completions"),
            (b"authorization", b"Bearer " + self._token.encode()),
            (b"content-type", b"application/json"),
        ]
        return self.engine.request(headers, end_stream=False)

    def _flush(self) -> None:
        data = self.engine.outgoing(_WRITE_BYTES)
        if data:
            self._transport.write(data)
        if len(data) >= _WRITE_BYTES:
            self._loop.call_soon(self._flush)

    # --- what the engine tells

    def on_head(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None:
        if headers[0][1] != b"200":
            self.failed = f"stream {stream_id} was answered {headers[0][1].decode()}"

    def on_data(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        if stream_id == self.unread:
            return
        self.engine.consumed(stream_id, len(data))
        if stream_id == self._upload:
            if end_stream:
                self.uploads += 1
                self._loop.call_soon(self.upload)
            return
        now = time.monotonic_ns()
        tokens = self.tokens.get(stream_id)
        if tokens is not None and (found := _SENT_AT.search(data)):
            tokens.arrivals.append(now)
            tokens.ways.append(now - int(found[1]))

    def on_reset(self, stream_id: int, code: int, by_peer: bool) -> None:
        self.failed = f"stream {stream_id} was reset with code {code}"

    def on_goaway(self, last_stream_id: int, code: int) -> None:
        self.failed = f"GOAWAY with code {code}"

    def on_trailers(self, stream_id: int) -> None: ...

    def on_writable(self, stream_id: int) -> None: ...

    def on_ping_answered(self) -> None: ...

    def on_settings(self) -> None: ...

    def on_settings_answered(self) -> None: ...


async def measure(port: int, authority: str, token: str, rounds: int) -> list[str]:
    context = ssl.create_default_context(cafile=authority)
    context.set_alpn_protocols(["h2"])
    _, client = await asyncio.get_running_loop().create_connection(
        lambda: Client(token), "127.0.0.1", port, ssl=context, server_hostname="localhost"
    )
    streams = [client.ask(MANY_TOKENS) for _ in range(STREAMS - 2)]
    alone: list[tuple[float, float]] = []
    beside: list[tuple[float, float]] = []
    for _ in range(rounds):
        alone.append(await _phase(client, streams))
        client.disturb()
        beside.append(await _phase(client, streams))
        client.leave_alone()
    names = ("alone", f"beside an unread one and {client.uploads} uploads")
    lines = [
        f"{name:40} p99 between tokens {min(gap for gap, _ in found):6.2f} ms, "
        f"on the way {min(way for _, way in found):6.2f} ms"
        for name, found in zip(names, (alone, beside), strict=True)
    ]
    grew = min(gap for gap, _ in beside) - min(gap for gap, _ in alone)
    return [*lines, f"http2_stall: p99_grew_ms={grew:.2f} bar_ms={BAR_MS:.0f}"]


async def _phase(client: Client, streams: Sequence[int]) -> tuple[float, float]:
    """The 99th percentiles in ms: between tokens, on the way."""
    await asyncio.sleep(WARM_S)
    for stream in streams:
        client.tokens[stream] = Tokens([], [])
    await asyncio.sleep(PHASE_S)
    if client.failed:
        raise BenchError(client.failed)
    found = [client.tokens[stream] for stream in streams]
    gaps = [after - before for one in found for before, after in itertools.pairwise(one.arrivals)]
    ways = [way for one in found for way in one.ways]
    return quantile(gaps, 0.99) / 1e6, quantile(ways, 0.99) / 1e6


def run(processes: Processes, folder: Path, rounds: int) -> list[str]:
    port, token = start_watched(processes, folder, "bench.http2_stall")
    return uvloop.run(measure(port, str(folder / "ca.pem"), token, rounds))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.http2_stall",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--upstream", nargs=2, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.upstream:
        uvloop.run(serve(arguments.upstream, SlowUpstream))
    with benchmark() as (processes, folder):
        for line in run(processes, folder, arguments.rounds):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
