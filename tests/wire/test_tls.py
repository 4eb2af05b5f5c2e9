"""TLS with sockets and processes: what is spoken, and whose tickets a worker takes."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from authority import Authority, Pair

from proxy.tls.ticket_keys import ROTATION_S

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("localhost")


def client_context(authority: Authority, highest: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    context = authority.client_context()
    context.set_alpn_protocols(["h2", "http/1.1"])
    if highest is not None:
        context.maximum_version = highest
    return context


class Client:
    """A TLS client that asks its worker who it is, and keeps the session."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context
        self.session: ssl.SSLSession | None = None
        self.reused = False

    def ask(self, port: int) -> list[str]:
        """What the worker behind `port` says of itself."""
        with (
            socket.create_connection(("127.0.0.1", port), 10) as plain,
            self.context.wrap_socket(
                plain, server_hostname="localhost", session=self.session
            ) as secure,
        ):
            self.reused = bool(secure.session_reused)
            secure.sendall(b"who\n")
            words = secure.recv(100).decode().split()
            # Tickets come after the handshake (RFC 8446 section 4.6.1): only now are they here.
            self.session = secure.session
            return words


def test_only_tls_1_3_is_spoken_and_http_2_chosen(
    authority: Authority, pair: Pair, run_stub: Run
) -> None:
    port = run_stub("plain", 1, pair.certificate, pair.key).ports()[0]
    with (
        socket.create_connection(("127.0.0.1", port), 10) as plain,
        client_context(authority).wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        assert secure.version() == "TLSv1.3"
        assert secure.selected_alpn_protocol() == "h2"
        assert secure.compression() is None
    old = Client(client_context(authority, ssl.TLSVersion.TLSv1_2))
    with pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION"):
        old.ask(port)


def test_every_worker_takes_every_ticket(authority: Authority, pair: Pair, run_stub: Run) -> None:
    """100 % resumption over three workers, and still when one of them was replaced."""
    stub = run_stub("plain", 3, pair.certificate, pair.key)
    ports = stub.ports()
    assert "https://127.0.0.1" in stub.said[-1]
    client = Client(client_context(authority))
    pids = dict(client.ask(port)[:2] for port in ports)
    assert len(set(pids.values())) == 3
    for port in ports * 5:
        client.ask(port)
        assert client.reused
    os.kill(int(pids["0"]), signal.SIGKILL)
    stub.wait_for("worker 0 .* ended with SIGKILL")
    assert successor(client, ports[0]) != pids["0"]
    assert client.reused
    newcomer = Client(client.context)
    newcomer.ask(ports[0])
    assert not newcomer.reused
    newcomer.ask(ports[1])
    assert newcomer.reused


def successor(client: Client, port: int) -> str:
    """The pid of the new worker: the shared socket queues us until it accepts."""
    give_up_at = time.monotonic() + 30
    while True:
        try:
            return client.ask(port)[1]
        except OSError:
            assert time.monotonic() < give_up_at
            time.sleep(0.05)


class Host:
    """`tls_host.py`, with a clock that can be moved."""

    def __init__(self, run: Run, files: tuple[str, ...], ahead: Path, ca: str = "") -> None:
        self._ahead = ahead
        self.move_to(0.0)
        script = str(Path(__file__).with_name("tls_host.py"))
        self.ports: list[int] = run(script, "4", *files, str(ahead), *filter(None, [ca])).ports()

    def move_to(self, ahead_s: float) -> None:
        part = self._ahead.with_suffix(".part")
        part.write_text(str(ahead_s))
        os.replace(part, self._ahead)


@pytest.fixture
def files(pair: Pair, tmp_path: Path) -> tuple[str, ...]:
    secret = tmp_path / "secret"
    secret.write_text(secrets.token_hex(32))
    return pair.certificate, pair.key, str(secret)


def test_workers_of_two_hosts_take_every_ticket_across_rotations(
    authority: Authority, files: tuple[str, ...], run_process: Run, tmp_path: Path
) -> None:
    """Every reconnection resumes, though one host's clock is 8 hours behind the other's. Tickets
    are three hours old when they are used, which adds up to less than a rotation."""
    one = Host(run_process, files, tmp_path / "one")
    two = Host(run_process, files, tmp_path / "two")
    client = Client(client_context(authority))
    client.ask(one.ports[0])
    pids, resumed = set(), []
    for quarter in range(13):  # 39 hours, so three rotations
        one.move_to(quarter * ROTATION_S / 4)
        two.move_to(quarter * ROTATION_S / 4 - ROTATION_S * 2 / 3)
        for port in (*one.ports, *two.ports):
            pids.add(client.ask(port)[0])
            resumed.append(client.reused)
    assert len(pids) == 8
    assert resumed == [True] * 13 * 8


def test_no_ticket_crosses_between_an_open_host_and_one_that_asks_for_certificates(
    authority: Authority, files: tuple[str, ...], run_process: Run, tmp_path: Path
) -> None:
    opened = Host(run_process, files, tmp_path / "one")
    closed = Host(run_process, files, tmp_path / "two", authority.path)
    client = Client(authority.issue("c").present(client_context(authority)))
    for old, new in [(opened, closed), (closed, opened)]:
        client.session = None
        client.ask(old.ports[0])
        ticket = client.session
        for port in old.ports:
            client.session = ticket
            client.ask(port)
            assert client.reused
        for port in new.ports:
            client.session = ticket
            client.ask(port)
            assert not client.reused
