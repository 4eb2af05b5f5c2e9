"""The pool and the client against real sockets: a server that does what a test scripts."""

from __future__ import annotations

import asyncio
import datetime
import errno
import ipaddress
import os
import socket
import ssl
import struct
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import listening
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from listening import served
from upstream import Client, on_both_loops, until

from backend import dial
from backend.config import (
    HealthConfig,
    PoolConfig,
    ReplicaTlsConfig,
    TimeoutsConfig,
)
from backend.dial import REFUSED
from core.errors import (
    Unavailable,
    UpstreamReset,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from core.section import FilePath

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HELLO = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


class Server:
    """Counts what arrives; `script` plays one connection."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.accepted = 0
        self.open = 0
        self.port = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.open += 1
        try:
            await self.script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def serving(script: Script, **options: Any) -> AsyncIterator[Server]:
    server = Server(script)
    async with served(server, **options) as server.port:
        yield server
    await until(lambda: server.open == 0)


async def head(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


async def keep_answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        await head(reader)
        writer.write(HELLO)


@asynccontextmanager
async def using(server: Server, **options: Any) -> AsyncIterator[Client]:
    client = Client(f"http://127.0.0.1:{server.port}", **options)
    try:
        yield client
    finally:
        await client.pool.close()
        await until(lambda: client.pool.open_connections() == 0)


@on_both_loops
async def test_reuse_until_it_was_idle_for_too_long() -> None:
    async with serving(keep_answering) as server, using(server) as client:
        reused = []
        for wait in (0.0, 0.1, 3.9, 4.0, 5.0, 0.0):
            client.now += wait
            connection, answer = await client.ask()
            assert (answer.status, answer.body) == (200, b"hi")
            reused.append(connection.reused)
        assert reused == [False, True, True, False, False, True]
        assert (server.accepted, client.connects("ok")) == (3, 3)
        assert client.pool.open_connections() == 1


@on_both_loops
async def test_last_in_first_out() -> None:
    async with serving(keep_answering) as server, using(server) as client:
        pairs = [await client.begin(fresh=True) for _ in range(3)]
        await asyncio.gather(*(answer.done for _, answer in pairs))
        for _ in range(5):
            await client.ask()
        assert server.accepted == 3
        assert client.pool.open_connections() == 3


@on_both_loops
async def test_fresh_is_never_a_used_one() -> None:
    async with serving(keep_answering) as server, using(server) as client:
        for _ in range(2):
            connection, _ = await client.ask(fresh=True)
            assert not connection.reused
        assert server.accepted == 2


@on_both_loops
async def test_one_that_the_peer_closed_is_not_given_out() -> None:
    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(HELLO)

    async with serving(answer_once) as server, using(server) as client:
        await client.ask()
        await until(lambda: client.pool.open_connections() == 0)
        connection, _ = await client.ask()
        assert not connection.reused


@on_both_loops
async def test_reset_of_a_reused_one_before_any_byte() -> None:
    async def reset_the_second(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(HELLO)
        await head(reader)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with serving(reset_the_second) as server, using(server) as client:
        await client.ask()
        with pytest.raises(UpstreamReset) as caught:
            await client.ask()
        assert (caught.value.reused, caught.value.answered) == (True, False)


@on_both_loops
async def test_truncated_in_the_middle() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab")

    async with serving(cut) as server, using(server) as client:
        with pytest.raises(UpstreamReset) as caught:
            await client.ask()
        assert caught.value.answered


@on_both_loops
async def test_answer_while_a_large_request_is_unsent() -> None:
    async def refuse_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(b"HTTP/1.1 413 No\r\ncontent-length: 0\r\n\r\n")
        await reader.read()

    async with serving(refuse_early, limit=1024) as server, using(server) as client:
        _, answer = await client.begin(body=b"x" * 20_000_000)
        await answer.done
        assert answer.status == 413
        await until(lambda: client.pool.open_connections() == 0)


@on_both_loops
async def test_paused_reading_bounds_what_the_replica_sends() -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 32000000\r\n\r\n")
        for _ in range(500):
            writer.write(b"x" * 64000)
            await writer.drain()
            sent += 64000

    async with serving(flood) as server, using(server) as client:
        connection, answer = await client.begin()
        await answer.started.wait()
        connection.pause_reading()
        before = answer.size
        sizes = []
        while len(sizes) < 2 or sizes[-1] != sizes[-2]:
            await asyncio.sleep(0.1)
            sizes.append(sent)
        assert answer.size == before
        assert sent < 24_000_000, "the kernel's buffers and no more"
        connection.resume_reading()
        await answer.done
        assert answer.size == 32_000_000


@on_both_loops
async def test_abort_closes_at_the_replica() -> None:
    left = asyncio.Event()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        assert await reader.read() == b""
        left.set()

    async with serving(stream) as server, using(server) as client:
        connection, answer = await client.begin()
        await answer.started.wait()
        connection.abort()
        async with asyncio.timeout(20):
            await left.wait()
        assert not answer.done.done()


@on_both_loops
async def test_a_thousand_aborted_exchanges_leave_no_socket() -> None:
    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        await reader.read()

    async with serving(stream, backlog=200) as server, using(server) as client:
        before = len(os.listdir("/proc/self/fd"))

        async def cycle(number: int) -> None:
            connection, answer = await client.begin()
            if number % 2:
                await answer.started.wait()
            connection.abort()

        for start in range(0, 1000, 50):
            await asyncio.gather(*(cycle(start + n) for n in range(50)))
        await until(lambda: client.pool.open_connections() == 0 and server.open == 0)
        assert client.connects("ok") == 1000
        # A transport gives its socket up in a later pass of the loop.
        await until(lambda: len(os.listdir("/proc/self/fd")) <= before)


@on_both_loops
async def test_refused_and_unknown() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    client = Client(f"http://127.0.0.1:{port}")
    with pytest.raises(UpstreamUnreachable) as caught:
        await client.pool.connect("r")
    assert caught.value.reason == REFUSED
    assert (client.connects("refused"), client.pool.open_connections()) == (1, 0)
    client = Client("http://name.invalid:80")
    with pytest.raises(UpstreamUnreachable) as caught:
        await client.pool.connect("r")
    assert caught.value.reason == "upstream_unreachable"
    client = Client("unix:/nowhere/vllm.sock")
    with pytest.raises(UpstreamUnreachable) as caught:
        await client.pool.connect("r")
    assert caught.value.reason == REFUSED


@asynccontextmanager
async def full_backlog() -> AsyncIterator[int]:
    """A listener that answers no SYN any more."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
        await asyncio.sleep(0.02)
        try:
            yield listener.getsockname()[1]
        finally:
            for sock in waiting:
                sock.close()


@on_both_loops
async def test_connect_has_a_deadline() -> None:
    async with full_backlog() as port:
        client = Client(f"http://127.0.0.1:{port}", timeouts=TimeoutsConfig(connect_s=0.05))
        with pytest.raises(UpstreamTimeout) as caught:
            await client.pool.connect("r")
        assert (caught.value.phase, caught.value.retryable) == ("connect", True)
        assert client.pool.open_connections() == 0


@on_both_loops
async def test_a_cancelled_connect_leaves_nothing() -> None:
    before = len(os.listdir("/proc/self/fd"))
    async with full_backlog() as port:
        inside = len(os.listdir("/proc/self/fd"))
        client = Client(f"http://127.0.0.1:{port}")
        task = asyncio.ensure_future(client.pool.connect("r"))
        await until(lambda: client.pool.open_connections() == 1)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert client.pool.open_connections() == 0
        await until(lambda: len(os.listdir("/proc/self/fd")) <= inside)
        assert client.connects("cancelled") == 1
    assert len(os.listdir("/proc/self/fd")) <= before


@on_both_loops
async def test_cancelled_at_any_tick() -> None:
    async with serving(keep_answering) as server, using(server) as client:
        for ticks in range(12):
            task = asyncio.ensure_future(client.pool.connect("r", fresh=True))
            for _ in range(ticks):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result().abort()
        await until(lambda: client.pool.open_connections() == 0 and server.open == 0)


@on_both_loops
async def test_a_unix_socket() -> None:
    server = Server(keep_answering)
    with tempfile.TemporaryDirectory() as folder:  # a socket's path has 107 bytes at most
        listener = await asyncio.start_unix_server(server, f"{folder}/s")
        client = Client(f"unix:{folder}/s")
        connection, answer = await client.ask()
        again, _ = await client.ask()
        assert (answer.body, connection.reused, again.reused) == (b"hi", False, True)
        await client.pool.close()
        await until(lambda: client.pool.open_connections() == 0 and server.open == 0)
        await listening.close(listener)


@on_both_loops
async def test_small_requests_are_not_delayed() -> None:
    async with serving(keep_answering) as server, using(server) as client:
        connection = await client.pool.connect("r")
        sock = connection._protocol._transport.get_extra_info("socket")  # type: ignore[union-attr]
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        connection.abort()


@on_both_loops
async def test_warm_connections_are_kept_and_counted() -> None:
    async with serving(keep_answering) as server:
        async with using(server, pool=PoolConfig(warm=2)) as client:
            await client.pool.start()
            await until(lambda: client.connects("ok") == 2)
            assert client.pool.open_connections() == 2
            connection, _ = await client.ask()
            assert not connection.reused
            assert server.accepted == 2
        await until(lambda: server.open == 0)


@on_both_loops
async def test_close_lets_a_response_end() -> None:
    go_on = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        await go_on.wait()
        writer.write(HELLO)

    async with serving(wait) as server, using(server) as client:
        _, answer = await client.begin()
        await client.pool.close()
        with pytest.raises(UpstreamUnreachable):
            await client.pool.connect("r")
        go_on.set()
        await answer.done
        assert answer.body == b"hi"
        await until(lambda: client.pool.open_connections() == 0)


@on_both_loops
async def test_silent_streams_of_a_refusing_replica_fail_and_flowing_ones_do_not() -> None:
    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        silent = b"silent" in await head(reader) + await reader.readexactly(6)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        while not silent:
            writer.write(b"1\r\na\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)
        await reader.read()

    health = HealthConfig(refused_grace_s=0.1)
    async with serving(stream) as server, using(server, health=health) as client:
        _, silent = await client.begin(body=b"silent")
        flowing, answer = await client.begin(body=b"flows!")
        await asyncio.gather(silent.started.wait(), answer.started.wait())
        before = client.pool.activity("r")
        client.pool.refused("r")
        with pytest.raises(UpstreamReset) as caught:
            await asyncio.wait_for(silent.done, 20)
        assert caught.value.answered
        assert not answer.done.done()
        assert client.pool.activity("r") > before
        flowing.abort()


class TestTls:
    """The replica has a certificate for 127.0.0.1 and gpu.test from a private authority."""

    @pytest.fixture
    def files(self, tmp_path: Path) -> tuple[str, str]:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpu.test")])
        start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
        names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("gpu.test")]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(1)
            .not_valid_before(start)
            .not_valid_after(start + datetime.timedelta(days=9))
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        (tmp_path / "c").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (tmp_path / "k").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return str(tmp_path / "c"), str(tmp_path / "k")

    def server_context(self, files: tuple[str, str]) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*files)
        return context

    @on_both_loops
    async def test_verified_and_resumed(self, files: tuple[str, str]) -> None:
        resumed = []

        async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            resumed.append(writer.get_extra_info("ssl_object").session_reused)
            await keep_answering(reader, writer)

        async with serving(note, ssl=self.server_context(files)) as server:
            url = f"https://127.0.0.1:{server.port}"
            for name in (None, "gpu.test"):
                tls = ReplicaTlsConfig(ca=FilePath(files[0]), server_name=name)
                client = Client(url, tls)
                for _ in range(3):
                    _, answer = await client.ask(fresh=True)
                    assert answer.body == b"hi"
                await client.pool.close()
                await until(lambda c=client: c.pool.open_connections() == 0)  # type: ignore[misc]
            assert resumed == [False, True, True] * 2

    @pytest.mark.parametrize("wrong", ["authority", "name"])
    @on_both_loops
    async def test_not_verified(self, files: tuple[str, str], wrong: str) -> None:
        tls = ReplicaTlsConfig(
            ca=FilePath(files[0]) if wrong == "name" else None, server_name="other.test"
        )
        async with serving(keep_answering, ssl=self.server_context(files)) as server:
            client = Client(f"https://127.0.0.1:{server.port}", tls)
            with pytest.raises(UpstreamUnreachable) as caught:
                await client.ask()
            assert caught.value.reason == "upstream_tls_failed"
            assert client.pool.open_connections() == 0

    @on_both_loops
    async def test_handshake_has_a_deadline(self) -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        async with serving(silent) as server:
            url = f"https://127.0.0.1:{server.port}"
            client = Client(url, timeouts=TimeoutsConfig(tls_s=0.1))
            with pytest.raises(UpstreamTimeout) as caught:
                await client.ask()
            assert (caught.value.phase, caught.value.retryable) == ("tls", True)
            assert client.pool.open_connections() == 0
            await until(lambda: server.open == 0)


async def test_a_lack_of_descriptors_is_not_the_replicas_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client("http://127.0.0.1:9")

    async def exhausted(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(dial, "_connect", exhausted)
    with pytest.raises(Unavailable) as caught:
        await client.pool.connect("r")
    assert caught.value.reason == "out_of_descriptors"
    assert client.pool.open_connections() == 0
