"""A supervisor whose workers are stubs: run by the tests as a process of its own.

Usage: stub_gateway.py MODE WORKERS DRAIN_S [CERTIFICATE KEY]. Each worker serves only the
listening socket of its own index, and answers a line with `index pid word`. The word comes from
the file that the environment variable STUB_WORDS names: `ok` for one that can be loaded. It is
read anew for each reload. `bad` cannot be loaded, `refused` by worker 1, which dies of `deadly`
and cannot commit `fatal`; `slow` takes a while. There is a core in the modes `core`, `core-crash`
and `core-config`; in the last two it cannot start.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from core.errors import ConfigError
from proxy.listen.address import parse_address
from proxy.listen.sockets import bind_all
from proxy.serve.supervise.control import ControlSocket
from proxy.serve.supervise.messages import Drain, Found, Message, Outcome
from proxy.serve.supervise.names import CORE
from proxy.serve.supervise.reloader import Candidate
from proxy.serve.supervise.supervisor import Supervisor, say
from proxy.serve.supervise.watch import Identity, identity
from proxy.serve.supervise.worker import Reloadable, Stop
from proxy.tls.config import TlsConfig
from proxy.tls.server import ServerTls

mode, workers, drain_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
context = None
if len(sys.argv) > 4:
    settings = TlsConfig(certificate=sys.argv[4], key=sys.argv[5])  # type: ignore[arg-type]
    context = ServerTls(settings, time.time).context
sockets = bind_all([parse_address("127.0.0.1:0")] * workers, None)


class Worker:
    """Has the word that it was forked with, or committed to."""

    def __init__(self, index: int, word: str) -> None:
        self.index = index
        self.word = word
        self.staged = word

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            writer.write(f"{self.index} {os.getpid()} {self.word}\n".encode())
            await writer.drain()
        writer.close()

    async def stage(self, text: bytes, path: str) -> None:
        word = text.decode().strip()
        if self.index == 1 and word == "refused":
            raise ConfigError("$.word: worker 1 does not like it\n$.word: not at all")
        if self.index == 1 and word == "deadly":
            os._exit(1)
        if word == "slow":
            await asyncio.sleep(0.3)
        self.staged = word

    def commit(self) -> None:
        if self.index == 1 and self.staged == "fatal":
            raise RuntimeError("cannot commit")
        self.word = self.staged

    def drop(self) -> None:
        self.staged = self.word

    def connect(self, say: Callable[[Message], None]) -> None:
        """It has nothing to say."""

    def told(self, outcome: Outcome) -> None:
        if outcome.result != "started":
            say(f"worker {self.index} was told: {outcome.result} {outcome.generation}")


class StubService:
    """What the supervisor runs here."""

    workers = workers
    core = mode.startswith("core")
    scheme = "http" if context is None else "https"
    delay_s = 0.3
    drain_s = drain_s
    secret = b"stub"
    hosts: dict[str, tuple[str, ...]] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.path = os.environ.get("STUB_WORDS", "/nowhere")
        self.watching = "STUB_WATCH" in os.environ
        self.seen = {self.path: identity(self.path)}
        self.word = Path(self.path).read_text().strip() if os.path.exists(self.path) else "ok"

    async def work(self, index: int, stop: Stop, ready: Callable[[Reloadable], None]) -> None:
        if mode == "bad-config":
            raise ConfigError("$.models: cannot be used\n$.replicas: neither")
        if mode == "crash-loop" and index == 0:
            raise RuntimeError("broken on purpose")
        if index == CORE and mode == "core-crash":
            raise RuntimeError("no core")
        if index == CORE and mode == "core-config":
            raise ConfigError("$.core: no core")
        worker = Worker(index, self.word)
        if index == CORE:
            ready(worker)
            await stop.wait()
            return
        server = await asyncio.start_server(
            worker.answer, sock=sockets.listen[index].socket, ssl=context
        )
        ready(worker)
        drain = await stop.wait()
        if drain.delay:
            await stop.pause(self.delay_s)
        server.close()
        if mode == "stubborn":
            await asyncio.sleep(3600)
        if mode == "streaming":
            whole = await stop.bear(asyncio.sleep(3600))
            say(f"worker {index} ended, {'whole' if whole else 'cut'}")
        say(f"worker {index} drained{' at last' if drain != Drain() else ''}")

    def on_death(self, index: int) -> None:
        say(f"folded {index}")

    def drain(self, replica_id: str, on: bool) -> str:
        return "nothing is drained here"

    def found(self, said: Found) -> str:
        return ""

    def took_over(self) -> None:
        say("took over")

    def load(self, seen: dict[str, Identity]) -> Candidate:
        seen[self.path] = identity(self.path)
        text = Path(self.path).read_bytes()
        if text.strip() == b"bad":
            raise ConfigError("$.word: bad\n$.word: really")
        return Candidate(text, ("$.word",), None)

    def adopt(self, candidate: Candidate) -> None:
        self.word = candidate.text.decode().strip()

    def count(self, result: str) -> None:
        say(f"counted {result}")


def make_control() -> ControlSocket | None:
    path = os.environ.get("STUB_CONTROL")
    return ControlSocket(path) if path else None


sys.exit(Supervisor(StubService(), sockets, make_control=make_control).run())
