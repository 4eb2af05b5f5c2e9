"""`python -m bench.abuse`: what does an abusive HTTP/2 client do to the others?

For each pattern of abuse two windows of ten seconds alternate, in several rounds: with a
connection that says nothing, and with one that abuses until it is cut; with `--again` there is a
third one, in which a client abuses on one connection after the other. In each one a neighbour asks
for one token at a time, on a connection of its own. Printed are for each pattern how much of it was
said on one connection and how many requests began at the upstream (the most of all rounds), and the
neighbour's time to first token, 99th percentile, against that of the windows without abuse (medians
of the rounds). CPU is what the gateway uses of its core meanwhile. What else the machine does shows
in `noise`: by how much windows without abuse differ from the ones before them, the median and the
greatest.

The gateway has one worker and a core to itself where there are two; neighbour, abuser and upstream
share the others.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import uvloop

from bench.abuse_patterns import PATTERNS, QUIET, UNREAD, Speaker
from bench.measure import quantile
from bench.processes import (
    BenchError,
    ClientProcess,
    Processes,
    accepts,
    cpu_ns,
    family,
    free_port,
)
from bench.rig import make_identity, start_gateway, start_redis
from bench.upstream import Engine, Upstream
from core.http2 import frames
from core.http2.frames import PREFACE, frame

ROUNDS, WINDOW_S = 2, 10.0
MOST_REQUESTS, BAR = 200, 2.0
AT_ONCE, PAUSE_S = 10, 0.001
_UNREAD_BYTES = 65_536
_GOAWAY = bytes([frames.GOAWAY]) + bytes(5)  # type, flags, stream


class Abuser(asyncio.Protocol):
    """One connection; `cut` is done when the gateway has ended it."""

    def __init__(self) -> None:
        self.cut: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport

    def __repr__(self) -> str:
        return f"<Abuser cut={self.cut.done()}>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(PREFACE + frame(frames.SETTINGS, 0, 0))

    def data_received(self, data: bytes) -> None:
        if _GOAWAY in data:
            self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.cut.done():
            self.cut.set_result(None)

    async def say(self, items: Iterator[bytes], end_at: float) -> int:
        """How many were written before it was cut."""
        said = 0
        while not self.cut.done() and time.monotonic() < end_at:
            if self.transport.get_write_buffer_size() < _UNREAD_BYTES:
                some = list(itertools.islice(items, AT_ONCE))
                said += len(some)
                self.transport.write(b"".join(some))
            await asyncio.sleep(PAUSE_S)
        return said


async def abuse(name: str, port: int, authority: str, token: str, again: bool) -> None:
    """The process that abuses, for one window; what it did is printed as JSON."""
    os.nice(10)  # it is not to take what the neighbour needs of their common core
    context = ssl.create_default_context(cafile=authority)
    context.set_alpn_protocols(["h2"])
    loop = asyncio.get_running_loop()
    print("ready", flush=True)
    end_at = time.monotonic() + WINDOW_S
    most = connections = cuts = 0
    while time.monotonic() < end_at:
        _, abuser = await loop.create_connection(
            Abuser, "127.0.0.1", port, ssl=context, server_hostname="localhost"
        )
        most = max(most, await abuser.say(PATTERNS[name][0](Speaker(token)), end_at))
        connections, cuts = connections + 1, cuts + abuser.cut.done()
        abuser.transport.abort()
        if not again:
            await asyncio.sleep(end_at - time.monotonic())
    print(json.dumps({"most": most, "connections": connections, "cuts": cuts}))


class Counting(Upstream):
    """Counts the abuser's requests, and says so at /abused."""

    asked = 0

    def data_received(self, data: bytes) -> None:
        Counting.asked += data.count(b'"abuse"')
        super().data_received(data)

    def _page(self, request: bytes) -> None:
        if not request.startswith(b"GET /abused "):
            super()._page(request)
            return
        body = b"%d" % Counting.asked
        self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)


async def serve(ports: list[int]) -> None:
    loop, engine = asyncio.get_running_loop(), Engine()
    for port in ports:
        await loop.create_server(lambda: Counting(engine), "127.0.0.1", port)
    await asyncio.Event().wait()


@dataclass(frozen=True, slots=True)
class Window:
    """`p99_ms` is the neighbour's, `share` the gateway's of its core; the rest is the abuser's."""

    p99_ms: float
    share: float
    requests: int
    most: int
    connections: int
    cuts: int


@dataclass(slots=True)
class Found:
    quiet: list[Window] = field(default_factory=list)
    once: list[Window] = field(default_factory=list)
    again: list[Window] = field(default_factory=list)

    @property
    def quiet_ms(self) -> float:
        return statistics.median(one.p99_ms for one in self.quiet)

    @property
    def again_counts(self) -> tuple[float, float]:
        """Connections, and requests that began, of one window."""
        median = statistics.median
        connections = median(one.connections for one in self.again)
        return connections, median(one.requests for one in self.again)

    def share(self, windows: list[Window]) -> str:
        return f"{statistics.median(one.share for one in windows):.0%}"

    def ratio(self, windows: list[Window]) -> float:
        pairs = zip(windows, self.quiet, strict=True)
        return statistics.median(one.p99_ms / quiet.p99_ms for one, quiet in pairs)


class Rig:
    """What runs."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        issuer = make_identity(folder)
        self._processes = processes
        self._upstreams = (free_port(), free_port())
        upstream = [sys.executable, "-m", "bench.abuse", "--upstream", *map(str, self._upstreams)]
        processes.start("upstream", upstream, lambda: all(map(accepts, self._upstreams)))
        start_redis(processes, folder)
        port, ca = free_port(), str(folder / "ca.pem")
        gateway = start_gateway(processes, folder, port, self._upstreams)
        assert gateway is not None
        self._gateway = gateway
        command = [sys.executable, "-m", "bench.client"]
        pipe = subprocess.PIPE
        client = processes.start("client", command, stdin=pipe, stdout=pipe)
        self._client = ClientProcess(client)
        token = issuer.token("tenant-1", tier="gold")
        self._client("target", name="headrace", port=port, ca=ca, token=token)
        self._abuser = [str(port), ca, issuer.token("tenant-2", tier="gold")]

    def __repr__(self) -> str:
        return f"<Rig gateway={self._gateway}>"

    def window(self, pattern: str = QUIET, *, again: bool = False) -> Window:
        before = self._asked()
        command = [sys.executable, "-m", "bench.abuse", "--abuser", pattern, *self._abuser]
        command += ["again"] if again else []
        abuser = self._processes.start("abuser", command, stdout=subprocess.PIPE)
        assert abuser.stdout is not None
        abuser.stdout.readline()
        cpu_before, began = self._cpu_ns(), time.monotonic_ns()
        answer = self._client("latency", names=["headrace"], seconds=WINDOW_S)
        if "failed" in answer:
            raise BenchError(answer["failed"])
        p99_ms = quantile(answer["times_ms"]["headrace"], 0.99)
        share = (self._cpu_ns() - cpu_before) / (time.monotonic_ns() - began)
        did, _ = abuser.communicate()
        return Window(p99_ms, share, self._asked() - before, **json.loads(did))

    def _cpu_ns(self) -> int:
        return sum(map(cpu_ns, family(self._gateway)))

    def _asked(self) -> int:
        url = f"http://127.0.0.1:{self._upstreams[0]}/abused"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return int(answer.read())


def run(rig: Rig, names: list[str], rounds: int, again: bool) -> Iterator[str]:
    rig.window()
    missed, worst, quiet = [], 0.0, list[float]()
    for name in names:
        found = Found()
        for _ in range(rounds):
            found.quiet.append(rig.window())
            found.once.append(rig.window(name))
            if again:
                found.again.append(rig.window(name, again=True))
        quiet += [one.p99_ms for one in found.quiet]
        most = max(one.most for one in found.once)
        requests = max(one.requests for one in found.once)
        ratio = found.ratio(found.once)
        worst = max(worst, ratio)
        held = all(one.cuts for one in found.once) or name == UNREAD
        if not held or most > PATTERNS[name][1] or requests > MOST_REQUESTS or ratio > BAR:
            missed.append(name)
        yield (
            f"{name:24} {most:5} said, {requests:4} requests; p99 {found.quiet_ms:6.2f} ms, "
            f"x{ratio:.2f}; CPU {found.share(found.quiet)}, {found.share(found.once)}"
        )
        if again:
            connections, begun = found.again_counts
            yield (
                f"{'':24} connecting anew {connections:.0f} times, {begun:.0f} requests; "
                f"x{found.ratio(found.again):.2f}; CPU {found.share(found.again)}"
            )
    noise = [max(a / b, b / a) for a, b in itertools.pairwise(quiet)] or [1.0]
    yield (
        f"abuse: missed={len(missed)} worst_ratio={worst:.2f} bar={BAR:.0f} "
        f"noise={statistics.median(noise):.2f} most_noise={max(noise):.2f}"
    ) + "".join(f" {name!r}" for name in missed)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.abuse",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="at least 2")
    parser.add_argument("--again", action="store_true", help="and by clients that come again")
    parser.add_argument("--upstream", nargs=2, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--abuser", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=[*PATTERNS][1:], help="one pattern")
    arguments = parser.parse_args()
    if arguments.upstream:
        uvloop.run(serve(arguments.upstream))
    if arguments.abuser:
        name, port, authority, token, *again = arguments.abuser
        uvloop.run(abuse(name, int(port), authority, token, bool(again)))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    names = [arguments.only] if arguments.only else [*PATTERNS][1:]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder_name:
        folder = Path(folder_name)
        with Processes(folder) as processes:
            try:
                for line in run(Rig(processes, folder), names, arguments.rounds, arguments.again):
                    print(line, flush=True)
            except BenchError as error:
                print(f"bench: {error}\n{processes.last_words()}", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
