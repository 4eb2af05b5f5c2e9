"""A new gateway takes the place of the running one while clients go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from client import Client, chat
from running import ROOT, Caller, Document, Identity, Process, admin, eventually

from loadtest.replica import FakeReplica
from proxy.serve.supervise.supervisor import KILL_MARGIN_S


class Traffic:
    """Clients that ask all the time: on connections of their own, and on kept ones."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.answered = 0
        self.failures: list[str] = []
        self._over = False

    async def _on_new_connections(self) -> None:
        while not self._over:
            try:
                answer = await self.caller.ask(chat(max_tokens=3))
                await self._counted(answer.status == 200 and answer.complete, f"{answer.status}")
            except (OSError, asyncio.IncompleteReadError) as error:
                await self._counted(False, f"new connection: {error!r}")

    async def _on_a_kept_connection(self) -> None:
        client: Client | None = None
        while not self._over:
            client = client or await self.caller.open()
            try:
                self.caller.send(client, chat(max_tokens=3))
                answer = await client.answer()
            except (OSError, asyncio.IncompleteReadError) as error:
                await self._counted(False, f"kept connection: {error!r}")
                client = None
                continue
            await self._counted(answer.status == 200 and answer.complete, f"{answer.status}")
            if answer.headers.get("connection") == "close":
                client.close()
                client = None
        if client is not None:
            client.close()

    async def _counted(self, whole: bool, fault: str) -> None:
        await asyncio.sleep(0.05)  # the gateway needs the processor, too
        self.answered += whole
        if not whole:
            self.failures.append(fault)

    async def more(self, answers: int = 10) -> None:
        """Wait until so many more are answered."""
        enough = self.answered + answers

        async def answered() -> bool:
            return self.answered >= enough

        await eventually(answered)

    @contextlib.asynccontextmanager
    async def flowing(self) -> AsyncIterator[None]:
        tasks = [asyncio.ensure_future(self._on_new_connections()) for _ in range(2)]
        tasks += [asyncio.ensure_future(self._on_a_kept_connection()) for _ in range(2)]
        try:
            await self.more()
            yield
            await self.more()
        finally:
            self._over = True
            await asyncio.gather(*tasks)
        assert self.failures == []


class Streams:
    """Streams that go on for longer than a replacement takes."""

    def __init__(self, caller: Caller, count: int, tokens: int) -> None:
        self.caller = caller
        self.count = count
        self.tokens = tokens
        self._clients: list[Client] = []

    async def begin(self) -> None:
        for _ in range(self.count):
            client = await self.caller.open()
            self.caller.send(client, chat(max_tokens=self.tokens, user="fake:token_ms=20"))
            assert (await client.head()).status == 200
            self._clients.append(client)

    async def whole(self) -> int:
        """Read them to their ends: how many are whole."""
        found = 0
        for client in self._clients:
            body = b""
            while chunk := await client.chunk():
                body += chunk
            found += chunk == b"" and body.endswith(b"data: [DONE]\n\n")
            client.close()
        return found


async def said(gateway: Process, text: str, times: int = 1) -> str:
    """What it says on stderr, once it has said `text`."""

    async def spoken() -> bool:
        return gateway.stderr().decode().count(text) >= times

    await eventually(spoken, 30)
    return gateway.stderr().decode()


async def headrace_reload(gateway: Process) -> int:
    command = [sys.executable, "-m", "proxy.serve", "reload", "-c"]
    process = await asyncio.create_subprocess_exec(
        *command, str(gateway.folder / "headrace.yaml"), cwd=ROOT
    )
    return await process.wait()


async def serves(gateway: Process) -> int:
    """The pid of the worker that answers at the admin listener, once it is ready."""

    async def ready() -> bool:
        return (await admin(gateway, "/readyz")).status == 200

    await eventually(ready)
    pid: int = (await admin(gateway, "/version")).json()["pid"]
    return pid


@pytest.fixture
def document(identity: Identity, replicas: list[FakeReplica]) -> Document:
    """Two workers, and a moment in which kept connections hear that they should go."""
    urls = [replica.url for replica in replicas]
    return identity.config(urls, workers=2, propagation_s=0.5)


async def test_the_new_one_serves_and_the_old_one_ends_its_streams(
    identity: Identity, document: Document
) -> None:
    with Process(document) as older:
        caller = Caller(older, identity)
        streams = Streams(caller, 8, 120)
        traffic = Traffic(caller)
        session = await asyncio.to_thread(tls_session, caller, None)
        await streams.begin()
        newer = older.replacement()
        async with traffic.flowing():
            newer.start()
            await asyncio.to_thread(newer.wait_listening)
            await traffic.more()
            assert f"took the place of pid {older.pid}" in newer.stderr().decode()
            await said(older, f"stopping (pid {newer.pid} took our place)")
            assert await serves(newer) in newer.workers
            assert await streams.whole() == 8
            assert await asyncio.to_thread(older.ended) == 0
            await traffic.more()
            assert await asyncio.to_thread(tls_session, caller, session) is not None
            assert await headrace_reload(newer) == 0
        assert await asyncio.to_thread(newer.stop) == 0
        with pytest.raises(ConnectionRefusedError):
            await caller.open()


@contextlib.contextmanager
def no_successor_left(gateway: Process) -> Iterator[None]:
    """Those that it started itself are not ours to wait for, and must not outlive the test."""
    try:
        yield
    finally:
        for pid in re.findall(r"SIGUSR2: pid (\d+) ", gateway.stderr().decode()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


async def test_sigusr2_does_the_same_from_within(identity: Identity, document: Document) -> None:
    with Process(document) as gateway, no_successor_left(gateway):
        caller = Caller(gateway, identity)
        streams = Streams(caller, 4, 120)
        await streams.begin()
        pid = 0
        async with Traffic(caller).flowing():
            gateway.signal(signal.SIGUSR2)
            await said(gateway, "listening on", 2)
            told = await said(gateway, "took our place")
            pid = int(re.findall(r"stopping \(pid (\d+) took our place\)", told)[0])
            assert await streams.whole() == 4
            assert await asyncio.to_thread(gateway.ended) == 0
        assert await serves(gateway)
        os.kill(pid, signal.SIGTERM)
        await said(gateway, "stopping (SIGTERM)")
        await gone(pid)


@pytest.mark.parametrize("delay_s", [0.1, 0.6])
async def test_sigterm_ends_a_successor_that_is_only_starting(
    identity: Identity, document: Document, delay_s: float
) -> None:
    """Else it would find nothing to replace, and go on alone."""
    with Process(document) as gateway:
        workers = children(gateway.pid)

        async def successors() -> set[int]:
            return set(children(gateway.pid)).difference(workers)

        gateway.signal(signal.SIGUSR2)
        (newer,) = await eventually(successors)
        await asyncio.sleep(delay_s)
        gateway.signal(signal.SIGTERM)
        assert await asyncio.to_thread(gateway.ended) == 0
        await gone(newer)
        with pytest.raises(ConnectionRefusedError):
            await Caller(gateway, identity).open()


async def gone(pid: int) -> None:
    async def ended() -> bool:
        return not os.path.exists(f"/proc/{pid}")

    await eventually(ended)


@pytest.mark.parametrize("fault", ["settings", "address"])
async def test_a_new_one_that_cannot_start_changes_nothing(
    identity: Identity, document: Document, fault: str
) -> None:
    with Process(document) as older, socket.create_server(("127.0.0.1", 0)) as taken:
        caller = Caller(older, identity)
        newer = older.replacement()
        listen = newer.document["listen"]
        if fault == "settings":
            newer.document["models"] = []
        else:
            port = taken.getsockname()[1]
            addresses = [*listen["addresses"], f"127.0.0.1:{port}"]
            newer.document["listen"] = {**listen, "addresses": addresses}
        async with Traffic(caller).flowing():
            newer.start()
            assert await asyncio.to_thread(newer.ended) == 2
        assert b"stopping" not in older.stderr()
        # Nor does it stand in the way of the next one.
        better = older.replacement()
        better.start()
        await asyncio.to_thread(better.wait_listening)
        assert await asyncio.to_thread(older.ended) == 0
        assert await asyncio.to_thread(better.stop) == 0


async def test_addresses_may_differ_and_a_socket_file_stays(
    identity: Identity, document: Document
) -> None:
    older = Process(document)
    kept, given_up, added = (f"unix:{older.folder}/{name}" for name in ("kept", "old", "new"))
    first = older.document["listen"]["addresses"][0]
    older.document["listen"]["addresses"] = [first, kept, given_up]
    with older:
        newer = older.replacement()
        newer.document["listen"] = {**newer.document["listen"], "addresses": [first, added, kept]}
        newer.document["workers"] = 1
        newer.start()
        await asyncio.to_thread(newer.wait_listening)
        assert await asyncio.to_thread(older.ended) == 0
        assert not (older.folder / "old").exists()
        caller = Caller(newer, identity)
        for name in ("kept", "new"):
            client = Client(
                *await asyncio.open_unix_connection(
                    str(older.folder / name), ssl=caller.context, server_hostname="localhost"
                )
            )
            caller.send(client, chat(max_tokens=2))
            assert (await client.answer()).complete
            client.close()
        assert await asyncio.to_thread(newer.stop) == 0
        assert not (older.folder / "kept").exists()
        assert not (older.folder / "run" / "control.sock").exists()


async def test_nothing_to_replace_is_no_hindrance(identity: Identity, document: Document) -> None:
    gateway = Process(document).replacement()
    with gateway:
        await asyncio.to_thread(gateway.wait_listening)
        assert "there is nothing to replace" in gateway.stderr().decode()
        assert (await Caller(gateway, identity).models()).status == 200
    shutil.rmtree(gateway.folder)


def tls_session(caller: Caller, session: ssl.SSLSession | None) -> ssl.SSLSession | None:
    """The session of a new connection that offers `session`, None if that was not resumed."""
    with (
        socket.create_connection(("127.0.0.1", caller.gateway.port), 10) as plain,
        caller.context.wrap_socket(plain, server_hostname="localhost", session=session) as secure,
    ):
        head = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        secure.sendall(f"{head}Authorization: Bearer {caller.token}\r\n\r\n".encode())
        while secure.recv(65536):
            pass
        return secure.session if session is None or secure.session_reused else None


ALONE = ["unshare", "--user", "--map-root-user", "--pid", "--mount-proc", "--fork", "--kill-child"]


def can_be_alone() -> bool:
    with contextlib.suppress(OSError):
        return subprocess.run([*ALONE, "true"], check=False, capture_output=True).returncode == 0
    return False


async def test_pid_1_stays_until_the_last_one_ends(identity: Identity, document: Document) -> None:
    """As in a container: its end would be the end of them all."""
    if not await asyncio.to_thread(can_be_alone):
        pytest.skip("no namespace of processes can be made here")
    container = Process(document)
    container.prefix = ALONE
    with container:
        caller = Caller(container, identity)
        streams = Streams(caller, 2, 60)
        await streams.begin()
        (first,) = children(container.pid)
        async with Traffic(caller).flowing():
            for times in (2, 3):  # it is replaced, and its successor too
                os.kill(first, signal.SIGUSR2)
                await said(container, "listening on", times)
                await asyncio.sleep(0.1)
            assert await streams.whole() == 2
        assert os.path.exists(f"/proc/{first}")
        assert (await caller.models()).status == 200
        os.kill(first, signal.SIGTERM)
        assert await asyncio.to_thread(container.ended) == 0
        with pytest.raises(ConnectionRefusedError):
            await caller.open()


async def test_pid_1_costs_nothing_after_its_own_grace_period(
    identity: Identity, document: Document
) -> None:
    """It waits for a signal then, and for nothing that has been due for long."""
    if not await asyncio.to_thread(can_be_alone):
        pytest.skip("no namespace of processes can be made here")
    container = Process({**document, "drain_s": 0})
    container.prefix = ALONE
    with container:
        (first,) = children(container.pid)
        os.kill(first, signal.SIGUSR2)
        await said(container, "listening on", 2)
        await said(container, "stopping (pid")
        await asyncio.sleep(document["propagation_s"] + KILL_MARGIN_S)
        before = cpu_ticks(first)
        await asyncio.sleep(1)
        assert cpu_ticks(first) - before <= 2
        assert await headrace_reload(container) == 0
        os.kill(first, signal.SIGTERM)
        assert await asyncio.to_thread(container.ended) == 0


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
