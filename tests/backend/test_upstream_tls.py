from __future__ import annotations

import contextlib
import ssl
from pathlib import Path
from typing import Any

import pytest

from backend.config import ReplicaConfig, ReplicaTlsConfig
from backend.upstream_tls import build_contexts
from core.errors import ConfigError
from core.section import FilePath
from proxy.serve.throwaway import make_certificate


def context(tls: ReplicaTlsConfig | None) -> ssl.SSLContext:
    return build_contexts([ReplicaConfig(url="https://gpu", model="m", tls=tls)])["gpu:443"]


def test_verified_by_default() -> None:
    for made in (context(None), context(ReplicaTlsConfig())):
        assert made.verify_mode is ssl.CERT_REQUIRED
        assert made.check_hostname
        assert made.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_verification_must_be_turned_off_by_name() -> None:
    made = context(ReplicaTlsConfig(verify=False))
    assert made.verify_mode is ssl.CERT_NONE
    assert not made.check_hostname


def test_plain_replicas_have_none() -> None:
    assert build_contexts([ReplicaConfig(url="http://gpu", model="m")]) == {}


def test_files_that_do_not_load(tmp_path: Path) -> None:
    missing = FilePath(tmp_path / "ca.pem")
    with pytest.raises(ConfigError, match=r"gpu:443.*ca\.pem"):
        context(ReplicaTlsConfig(ca=missing))
    (tmp_path / "ca.pem").write_text("not a certificate")
    with pytest.raises(ConfigError, match=r"ca\.pem"):
        context(ReplicaTlsConfig(ca=missing))


class Server:
    """The other side of a handshake in memory; it ends every connection after `tickets`."""

    def __init__(self, folder: Path, tickets: int = 2) -> None:
        files = make_certificate(folder)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(files.certificate, files.key)
        self.context.num_tickets = tickets
        self.tls = ReplicaTlsConfig(ca=FilePath(files.authority), server_name="localhost")

    def start(self, client: ssl.SSLContext) -> Handshake:
        return Handshake(self.context, client)


class Handshake:
    def __init__(self, server: ssl.SSLContext, client: ssl.SSLContext) -> None:
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server = server.wrap_bio(to_client, to_server, server_side=True)
        self.client = client.wrap_bio(to_server, to_client, server_hostname="localhost")

    def end(self) -> Handshake:
        for _ in range(3):
            for side in (self.client, self.server):
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
        self.server.write(b"x")
        assert self.client.read(1) == b"x"  # and the tickets before it
        return self


def test_the_session_of_the_last_connection_is_offered(tmp_path: Path) -> None:
    server = Server(tmp_path)
    client = context(server.tls)
    reused = [server.start(client).end().server.session_reused for _ in range(3)]
    assert reused == [False, True, True]
    assert server.context.session_stats()["hits"] == 2


def test_a_connection_under_way_does_not_hide_an_earlier_session(tmp_path: Path) -> None:
    server = Server(tmp_path)
    client = context(server.tls)
    server.start(client).end()
    under_way = server.start(client)
    assert server.start(client).end().server.session_reused
    assert under_way.end().server.session_reused
    never_ends = server.start(client)
    assert server.start(client).end().server.session_reused
    assert never_ends.server.version() is None


def test_a_connection_in_the_middle_of_its_handshake(tmp_path: Path) -> None:
    """Its session is there and cannot be read."""
    server = Server(tmp_path)
    client = context(server.tls)
    half_way = server.start(client)
    with pytest.raises(ssl.SSLWantReadError):
        half_way.client.do_handshake()
    with pytest.raises(ValueError, match="i2d"):
        assert half_way.client.session
    assert not server.start(client).end().server.session_reused


def test_without_tickets_nothing_is_resumed(tmp_path: Path) -> None:
    server = Server(tmp_path, tickets=0)
    client = context(server.tls)
    assert [server.start(client).end().server.session_reused for _ in range(2)] == [False, False]


def test_each_replica_has_sessions_of_its_own(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.start(context(server.tls)).end()
    assert not server.start(context(server.tls)).end().server.session_reused


@pytest.mark.parametrize(
    ("protocol", "agreed"), [("http1", "http/1.1"), ("h2", "h2"), ("auto", "h2")]
)
def test_what_is_offered(tmp_path: Path, protocol: Any, agreed: str) -> None:
    server = Server(tmp_path)
    server.context.set_alpn_protocols(["h2", "http/1.1"])
    replica = ReplicaConfig(url="https://gpu", model="m", tls=server.tls, protocol=protocol)
    client = build_contexts([replica])["gpu:443"]
    assert server.start(client).end().server.selected_alpn_protocol() == agreed
