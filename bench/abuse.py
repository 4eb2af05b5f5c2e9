"""`python -m bench.abuse`: what does an abusive HTTP/2 client do to the others?

For each pattern of abuse printed are: how much of it was said on one connection until that was cut;
how many requests began at the upstream; the CPU time that the gateway spent on it all, with nothing
else to do; and the time to first token of a neighbour, who asks for one token at a time on a
connection of its own, 99th percentile, in windows of ten seconds with the abuse and without it (a
connection that says nothing), in turn. Of several rounds the most, and of times the median.

The first three hardly depend on what else the machine does; for the last one `noise` says by how
much windows without abuse differ from the ones before them, the median and the greatest. CPU time
that is less than 1 % of the window can move no 99th percentile far.

The gateway has one worker and a core to itself where there are two; neighbour, abuser and upstream
share the others.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import ssl
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
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
    benchmark,
    cpu_ns,
    family,
    free_port,
)
from bench.rig import make_identity, start_gateway, start_redis
from bench.upstream import Engine, Upstream
from core.http2 import frames
from core.http2.frames import PREFACE, frame

ROUNDS, WINDOW_S, COST_S = 2, 10.0, 2.0
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


async def abuse(name: str, seconds: float, port: int, authority: str, token: str) -> None:
    """The process that abuses on one connection; what it did is printed as JSON."""
    os.nice(10)  # it is not to take what the neighbour needs of their common core
    context = ssl.create_default_context(cafile=authority)
    context.set_alpn_protocols(["h2"])
    loop = asyncio.get_running_loop()
    print("ready", flush=True)
    end_at = time.monotonic() + seconds
    _, abuser = await loop.create_connection(
        Abuser, "127.0.0.1", port, ssl=context, server_hostname="localhost"
    )
    said = await abuser.say(PATTERNS[name][0](Speaker(token)), end_at)
    await asyncio.sleep(max(0.0, end_at - time.monotonic()))
    print(json.dumps({"said": said, "cut": abuser.cut.done()}))


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
    """`p99_ms` is the neighbour's, the rest what the abuser did and what came of it."""

    p99_ms: float
    said: int
    cut: bool
    requests: int


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

    def window(self, pattern: str = QUIET) -> Window:
        before = self._asked()
        abuser = self._begin(pattern, WINDOW_S)
        answer = self._client("latency", names=["headrace"], seconds=WINDOW_S)
        if "failed" in answer:
            raise BenchError(answer["failed"])
        p99_ms = quantile(answer["times_ms"]["headrace"], 0.99)
        did, _ = abuser.communicate()
        return Window(p99_ms, requests=self._asked() - before, **json.loads(did))

    def cost_ms(self, pattern: str) -> float:
        """CPU time of the gateway in COST_S without a neighbour."""
        abuser = self._begin(pattern, COST_S)
        before = self._cpu_ns()
        abuser.communicate()
        return (self._cpu_ns() - before) / 1e6

    def _begin(self, pattern: str, seconds: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "bench.abuse", "--abuser", pattern, str(seconds)]
        abuser = self._processes.start("abuser", [*command, *self._abuser], stdout=subprocess.PIPE)
        assert abuser.stdout is not None
        abuser.stdout.readline()  # it is ready
        return abuser

    def _cpu_ns(self) -> int:
        return sum(map(cpu_ns, family(self._gateway)))

    def _asked(self) -> int:
        url = f"http://127.0.0.1:{self._upstreams[0]}/abused"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return int(answer.read())


def run(rig: Rig, names: list[str], rounds: int) -> Iterator[str]:
    rig.window()
    idle_ms = statistics.median(rig.cost_ms(QUIET) for _ in range(rounds))
    missed, worst, all_quiet = [], 0.0, list[float]()
    for name in names:
        cost_ms = statistics.median(rig.cost_ms(name) for _ in range(rounds)) - idle_ms
        pairs = [(rig.window(), rig.window(name)) for _ in range(rounds)]
        said = max(abused.said for _, abused in pairs)
        requests = max(abused.requests for _, abused in pairs)
        ratio = statistics.median(abused.p99_ms / quiet.p99_ms for quiet, abused in pairs)
        worst = max(worst, ratio)
        all_quiet += [quiet.p99_ms for quiet, _ in pairs]
        held = name == UNREAD or all(abused.cut for _, abused in pairs)
        if not held or said > PATTERNS[name][1] or requests > MOST_REQUESTS or ratio > BAR:
            missed.append(name)
        yield (
            f"{name:24} {said:5} said, {requests:4} requests, {cost_ms:5.0f} ms of CPU; "
            f"p99 {statistics.median(quiet.p99_ms for quiet, _ in pairs):6.2f} ms, x{ratio:.2f}"
        )
    noise = [max(a / b, b / a) for a, b in itertools.pairwise(all_quiet)] or [1.0]
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
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--upstream", nargs=2, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--abuser", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=[*PATTERNS][1:], help="one pattern")
    arguments = parser.parse_args()
    if arguments.upstream:
        uvloop.run(serve(arguments.upstream))
    if arguments.abuser:
        name, seconds, port, authority, token = arguments.abuser
        uvloop.run(abuse(name, float(seconds), int(port), authority, token))
        return 0
    names = [arguments.only] if arguments.only else [*PATTERNS][1:]
    with benchmark() as (processes, folder):
        for line in run(Rig(processes, folder), names, arguments.rounds):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
