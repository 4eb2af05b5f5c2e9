"""`python -m bench.change`: does anybody notice when the gateway is changed under load?

Streams run through a gateway with two workers, half of them on HTTP/2, and short requests beside
them, on connections of their own and on kept ones. Meanwhile the configuration is reloaded again
and again, every tenth time with a file that must be refused, and half-way a new gateway takes the
place of the running one (SIGUSR2). Printed is how many streams and requests failed: there must be
none.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import uvloop
import yaml

from bench.client import Lane, Target
from bench.http2_client import Http2Lane
from bench.processes import BenchError, Processes, accepts, family, free_port
from bench.rig import AUDIENCE, DEMO_MODEL, ISSUER, make_identity
from proxy.serve.supervise.control import NobodyThere, visit
from proxy.serve.supervise.messages import Outcome, Reload
from proxy.serve.throwaway import Issuer

TOKEN_MS = 400
STREAM_TOKENS = 60
STREAMS_PER_CONNECTION = 25
ASKERS = 4
SETTLE_S = 30.0


@dataclass
class Counts:
    """What happened to clients."""

    streams: int = 0
    requests: int = 0
    failures: list[str] = field(default_factory=list)


class Load:
    """Streams that ask again when their answer ended, and short requests."""

    def __init__(self, http1: Target, http2: Target) -> None:
        self._targets = {False: http1, True: http2}
        self.counts = Counts()
        self._over = False
        self._running = 0
        self._renewals: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Load {self.counts}>"

    async def begin(self, streams: int) -> list[asyncio.Task[None]]:
        for number in range(streams):
            lane = await self._targets[number % 2 == 1].connect()
            lane.ended = self._stream_ended
            self._running += 1
            lane.send(STREAM_TOKENS)
        tasks = [asyncio.ensure_future(self._open_and_ask()) for _ in range(ASKERS)]
        for number in range(ASKERS):
            tasks.append(asyncio.ensure_future(self._keep_and_ask(number % 2 == 1)))
        return tasks

    def _stream_ended(self, lane: Any) -> None:
        self._running -= 1
        self.counts.streams += 1
        if lane.failed:
            self.counts.failures.append(f"stream: {lane.failed}")
        if self._over:
            if self._running == 0:
                self._ended.set()
            return
        self._running += 1
        if isinstance(lane, Http2Lane):
            lane.send(STREAM_TOKENS)
        else:
            task = asyncio.ensure_future(self._again(lane))
            self._renewals.add(task)
            task.add_done_callback(self._renewals.discard)

    async def _again(self, lane: Lane) -> None:
        """On a connection of its own: the old one may have been told to end."""
        try:
            newer = await self._targets[False].connect()
        except OSError as error:
            self.counts.failures.append(f"connecting: {error!r}")
            self._running -= 1
            return
        lane.close()
        newer.ended = self._stream_ended
        newer.send(STREAM_TOKENS)

    async def _open_and_ask(self) -> None:
        target = self._targets[False]
        while not self._over:
            done = asyncio.Event()
            try:
                lane = await target.connect()
            except OSError as error:
                self.counts.failures.append(f"connecting: {error!r}")
                continue
            lane.ended = lambda _, done=done: done.set()
            lane.send(1)
            await done.wait()
            self.counts.requests += 1
            if lane.failed:
                self.counts.failures.append(f"request: {lane.failed}")
            if isinstance(lane, Lane):
                lane.close()
            await asyncio.sleep(0.02)

    async def _keep_and_ask(self, http2: bool) -> None:
        """On one connection, until the gateway says that it ends."""
        target = self._targets[http2]
        lane = await target.connect()
        while not self._over:
            done = asyncio.Event()
            lane.ended = lambda _, done=done: done.set()
            lane.kept = []
            lane.send(1)
            await done.wait()
            self.counts.requests += 1
            if lane.failed:
                self.counts.failures.append(f"kept connection: {lane.failed}")
            if isinstance(lane, Lane) and b"connection: close" in b"".join(lane.kept):
                lane.close()
                lane = await target.connect()
            await asyncio.sleep(0.02)

    async def end(self) -> None:
        self._over = True
        async with asyncio.timeout(STREAM_TOKENS * TOKEN_MS / 1000 + SETTLE_S):
            await self._ended.wait()


class Gateway:
    """The process, its configuration, and what changes it."""

    def __init__(self, folder: Path, port: int, replicas: list[int]) -> None:
        self.path = folder / "headrace.yaml"
        self.admin = free_port()
        self._log = folder / "headrace.log"
        issuer = {
            "issuer": ISSUER,
            "audiences": [AUDIENCE],
            "jwks": {"file": str(folder / "jwks.json")},
        }
        files = {"certificate": str(folder / "cert.pem"), "key": str(folder / "key.pem")}
        self._document: dict[str, Any] = {
            "listen": {"addresses": [f"127.0.0.1:{port}"], "tls": files},
            "admin": {"address": f"127.0.0.1:{self.admin}"},
            "run_dir": str(folder / "run"),
            "workers": 2,
            "auth": {"issuers": [issuer]},
            "models": [
                {
                    "name": "demo",
                    "tokenizer": str(DEMO_MODEL / "tokenizer.json"),
                    "chat_template": str(DEMO_MODEL / "chat_template.jinja"),
                }
            ],
            "replicas": [{"url": f"http://127.0.0.1:{up}", "model": "demo"} for up in replicas],
            "log": {"access": str(folder / "access.log")},
        }
        self.write()

    def __repr__(self) -> str:
        return f"<Gateway {self.path}>"

    def write(self, **sections: object) -> None:
        partial = self.path.with_suffix(".part")
        partial.write_text(yaml.safe_dump({**self._document, **sections}))
        os.replace(partial, self.path)

    def write_good(self, number: int) -> None:
        (model,) = self._document["models"]
        timeouts = {"idle_s": 60 + number % 7}
        self.write(
            models=[{**model, "aliases": [f"alias-{number}"]}], upstream={"timeouts": timeouts}
        )

    def write_bad(self) -> None:
        self.write(models=[])

    def reload(self) -> tuple[str, float]:
        """How it went, and how long it took in seconds."""
        began_at = time.monotonic()
        visitor = visit(str(self.path.parent / "run" / "control.sock"))
        visitor.channel.send(Reload(str(self.path)))
        answers = visitor.channel.wait(60)
        visitor.channel.close()
        took_s = time.monotonic() - began_at
        if answers and isinstance(answers[0], Outcome):
            return answers[0].result, took_s
        raise BenchError(f"a reload was answered {answers}")

    def said(self, text: str) -> int:
        return self._log.read_text().count(text)


async def run(streams: int, reloads: int) -> int:
    with tempfile.TemporaryDirectory(prefix="headrace-") as name:
        folder = Path(name)
        issuer = make_identity(folder)
        with Processes(folder) as processes:
            try:
                return await _measured(processes, folder, issuer, streams, reloads)
            except (BenchError, NobodyThere, TimeoutError):
                sys.stderr.write(processes.last_words())
                raise


async def _measured(
    processes: Processes, folder: Path, issuer: Issuer, streams: int, reloads: int
) -> int:
    port, replicas = free_port(), [free_port(), free_port()]
    for number, replica in enumerate(replicas):
        options = ["--port", str(replica), "--model", "demo", "--token-ms", str(TOKEN_MS)]
        command = [sys.executable, "-m", "loadtest", "replica", *options, "--max-running", "2000"]
        processes.start(f"replica-{number}", command, partial(accepts, replica))
    gateway = Gateway(folder, port, replicas)
    command = [sys.executable, "-m", "proxy.serve", "serve", "-c", str(gateway.path)]
    pid = processes.start("headrace", command, lambda: accepts(gateway.admin)).pid
    tokens = [issuer.token(f"tenant-{number}", lifetime_s=3600) for number in range(2)]
    ca = str(folder / "ca.pem")
    load = Load(Target(port, ca, tokens[0]), Target(port, ca, tokens[1], STREAMS_PER_CONNECTION))
    openers = await load.begin(streams)
    print(f"{streams} streams run; {reloads} reloads and one replacement follow", flush=True)
    results: dict[str, list[float]] = {"applied": [], "refused": []}
    memory_mb = [_memory_mb(pid)]
    successor = 0
    for number in range(reloads):
        if number == reloads // 2:
            memory_mb.append(_memory_mb(pid))
            gateway.write()
            successor = await _replaced(gateway, pid)
        gateway.write_bad() if number % 10 == 9 else gateway.write_good(number)
        result, took_s = await asyncio.to_thread(gateway.reload)
        results[result].append(took_s)
    memory_mb.append(_memory_mb(successor))
    await load.end()
    await asyncio.gather(*openers)
    await asyncio.to_thread(_end, successor)
    return _report(load.counts, results, memory_mb)


async def _replaced(gateway: Gateway, pid: int) -> int:
    """The pid of the gateway that took the place of `pid`."""
    began_at = time.monotonic()
    os.kill(pid, signal.SIGUSR2)
    while gateway.said("listening on") < 2:
        await asyncio.sleep(0.05)
        if time.monotonic() - began_at > SETTLE_S:
            raise BenchError("nobody took the gateway's place")
    print(f"replaced within {time.monotonic() - began_at:.1f} s", flush=True)
    return visit(str(gateway.path.parent / "run" / "control.sock")).pid


def _end(pid: int) -> None:
    """End the last gateway, which is no child of ours."""
    os.kill(pid, signal.SIGINT)
    give_up_at = time.monotonic() + SETTLE_S
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while " Z " not in Path(f"/proc/{pid}/stat").read_text():
            if time.monotonic() > give_up_at:
                raise BenchError(f"the gateway (pid {pid}) does not end")
            time.sleep(0.1)


def _memory_mb(pid: int) -> float:
    """Private memory of a supervisor and its workers, in MB."""
    total = 0
    for member in family(pid):
        for line in Path(f"/proc/{member}/smaps_rollup").read_text().splitlines():
            if line.startswith("Private_"):
                total += int(line.split()[1])
    return total / 1024


def _report(counts: Counts, results: dict[str, list[float]], memory_mb: list[float]) -> int:
    took = results["applied"]
    print(f"streams that ended: {counts.streams}; short requests: {counts.requests}")
    print(f"reloads: {len(took)} applied, {len(results['refused'])} refused")
    print(f"a reload took {statistics.median(took):.2f} s (median), {max(took):.2f} s (most)")
    print(
        "private memory, first, before and after the replacement: "
        + ", ".join(f"{megabytes:.0f} MB" for megabytes in memory_mb)
    )
    for failure in sorted(set(counts.failures))[:5]:
        print(f"  {failure}")
    print(f"RESULT failed={len(counts.failures)}")
    return 1 if counts.failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.change", description=__doc__)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--reloads", type=int, default=100)
    arguments = parser.parse_args()
    return uvloop.run(run(arguments.streams, arguments.reloads))


if __name__ == "__main__":
    sys.exit(main())
