"""`python -m bench.idle`: what does an idle stream cost in memory, and do others notice?

Clients open many streams over TLS, each on a connection of its own; the upstream sends a first
token on each and then nothing. Printed is what the gateway's processes (supervisor and workers)
have more of private memory (smaps_rollup, Private_Clean + Private_Dirty) than before the first
stream, divided by the number of streams. That includes the connection to the upstream that each
stream holds, and not what the kernel keeps for the sockets. Private memory of the gateway itself
is let settle by as many short requests before as after.

While all streams are open, short requests on new connections measure the time to first token,
against the same before. At the end the upstream completes every stream, and each client
checks that its own is whole.

Descriptors: each client process and each worker needs two for every stream it holds. The clients'
addresses are 127.0.0.1 and those next to it, since one address has too few ports.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import resource
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, cast

import uvloop

from bench.measure import quantile
from bench.processes import BenchError, ClientProcess, Processes, accepts, family, free_port
from bench.rig import AUDIENCE, ISSUER, start_gateway, start_redis
from proxy.serve.throwaway import Issuer, make_certificate

BAR_KIB = 60.0
PER_PROCESS = 2500
AT_ONCE = 32
PROBES = 300
_SETTLE_S = 2.0

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


async def obey(clients: Clients) -> None:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        method = getattr(clients, command.pop("op"))
        print(json.dumps(await method(**command)), flush=True)


# --- the measurement


def private_kib(pid: int) -> int:
    """Private memory of a process and all its descendants."""
    total = 0
    for each in family(pid):
        for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Private_Clean:", "Private_Dirty:")):
                total += int(line.split()[1])
    return total


def run(processes: Processes, folder: Path, streams: int, workers: int) -> Iterator[str]:
    make_certificate(folder)
    issuer = Issuer(ISSUER, AUDIENCE)
    (folder / "jwks.json").write_bytes(issuer.key_set())
    ports = (free_port(), free_port())
    me = [sys.executable, "-m", "bench.idle"]
    upstream = processes.start(
        "upstream", [*me, "--upstream", *map(str, ports)], lambda: all(map(accepts, ports))
    )
    start_redis(processes, folder)
    port = free_port()
    gateway = start_gateway(
        processes,
        folder,
        port,
        ports,
        workers=workers,
        upstream={"timeouts": {"idle_s": 3600, "first_token_s": 60}},
    )
    assert gateway is not None
    token = issuer.token("tenant-1", tier="gold")
    clients = []
    for number in range(-(-streams // PER_PROCESS) + 1):
        command = [*me, "--clients", str(port), str(folder / "ca.pem"), token]
        process = processes.start(
            f"clients-{number}",
            [*command, f"127.0.0.{number + 1}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        clients.append(ClientProcess(process))
    prober, *holders = clients

    prober("probe", count=PROBES)
    yield _times("before", prober("probe", count=PROBES))
    time.sleep(_SETTLE_S)
    before = private_kib(gateway)
    began_at = time.monotonic()
    left = streams
    for holder in holders:
        opened = holder("open", count=min(left, PER_PROCESS))
        left -= int(opened["open"])
    took_s = time.monotonic() - began_at
    yield f"{streams} streams opened in {took_s:.1f} s ({streams / took_s:.0f}/s), all idle"
    yield _times(f"with {streams} idle streams", prober("probe", count=PROBES))
    time.sleep(_SETTLE_S)
    after = private_kib(gateway)
    still = sum(int(holder("count")["open"]) for holder in holders)
    upstream.send_signal(signal.SIGUSR1)
    give_up_at = time.monotonic() + 60
    whole = 0
    while whole < streams and time.monotonic() < give_up_at:
        time.sleep(0.5)
        whole = sum(int(holder("count")["complete"]) for holder in holders)
    for holder in holders:
        holder("close")
    time.sleep(_SETTLE_S)
    yield f"still open {still}, complete at the end {whole}, of {streams}"
    yield (
        f"private memory: {before / 1024:.0f} MiB before, {after / 1024:.0f} MiB with the streams, "
        f"{private_kib(gateway) / 1024:.0f} MiB when they are gone ({workers} workers)"
    )
    yield f"idle: kib_per_stream={(after - before) / streams:.1f} bar_kib={BAR_KIB:.0f}"


def _times(name: str, probes: dict[str, object]) -> str:
    first = sorted(cast(list[float], probes["first"]))
    whole = sorted(cast(list[float], probes["whole"]))
    return (
        f"{name:26} first token p50 {quantile(first, 0.5):6.2f} ms, "
        f"p99 {quantile(first, 0.99):6.2f} ms; with connection and handshake "
        f"p50 {quantile(whole, 0.5):6.2f} ms, p99 {quantile(whole, 0.99):6.2f} ms"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.idle",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--upstream", nargs=2, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--clients", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if arguments.upstream:
        uvloop.run(serve(arguments.upstream))
    if arguments.clients:
        port, authority, token, source = arguments.clients
        uvloop.run(obey(Clients(int(port), authority, token, source)))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        with Processes(folder) as processes:
            try:
                for line in run(processes, folder, arguments.streams, arguments.workers):
                    print(line, flush=True)
            except BenchError as error:
                print(f"bench: {error}\n{processes.last_words()}", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
