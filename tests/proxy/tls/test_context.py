"""What a connection's TLS does beside OpenSSL: an alert is sent before a handshake fails."""

from __future__ import annotations

import ssl
import sys
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from authority import Authority
from memory_tls import Connection

from core.metrics import Metrics
from proxy.tls.config import TlsConfig
from proxy.tls.context import MemoryClient, ignore_bad_names, new_context
from proxy.tls.server import ServerTls


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def tls(authority: Authority) -> ServerTls:
    return ServerTls(TlsConfig(certificates=(authority.issue("a.example").config(),)), time.time)


class Half:
    """The server's side of a connection, and the bytes on both sides of it."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=True)

    def take(self, data: bytes) -> None:
        self.incoming.write(data)
        self.tls.do_handshake()


def hello(client: ssl.SSLContext, host: str = "aaaa.example") -> bytes:
    """A client's first bytes."""
    outgoing = ssl.MemoryBIO()
    made = client.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=host)
    with pytest.raises(ssl.SSLWantReadError):
        made.do_handshake()
    return outgoing.read()


def test_an_alert_comes_before_the_failure(authority: Authority, tls: ServerTls) -> None:
    metrics = Metrics.private()
    tls.use_metrics(metrics)
    old = authority.client_context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    half = Half(tls.context)
    with pytest.raises(ssl.SSLWantReadError):
        half.take(hello(old))
    assert half.outgoing.read() == b"\x15\x03\x03\x00\x02\x02\x46"  # fatal, protocol_version
    with pytest.raises(ssl.SSLError, match="UNSUPPORTED_PROTOCOL"):
        half.tls.do_handshake()
    assert metrics.value("headrace_tls_alerts_total", "unsupported_protocol") == 1


def test_without_an_alert_the_failure_comes_at_once(tls: ServerTls) -> None:
    half = Half(tls.context)
    with pytest.raises(ssl.SSLError, match="HTTP_REQUEST"):
        half.take(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    assert half.outgoing.pending == 0


def test_handshakes_are_counted(authority: Authority, tls: ServerTls) -> None:
    metrics = Metrics.private()
    tls.use_metrics(metrics)
    client = authority.client_context()
    first = Connection(client, tls.context)
    for _ in range(2):
        Connection(client, tls.context, session=first.session)
    assert metrics.value("headrace_tls_handshakes_total", "no") == 1
    assert metrics.value("headrace_tls_handshakes_total", "yes") == 2
    assert metrics.value("headrace_tls_ticket_keys", "memory") == 1


@pytest.mark.parametrize("name", [b"\xff\xfe\xfd\xfc.example", b"a\xc3\xa4a.example"])
def test_a_name_in_other_bytes_is_refused_without_a_word(
    authority: Authority, tls: ServerTls, name: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", ignore_bad_names)
    said: list[object] = []
    monkeypatch.setattr(sys, "__unraisablehook__", said.append)
    half = Half(tls.context)
    with pytest.raises(ssl.SSLWantReadError):
        half.take(hello(authority.client_context()).replace(b"aaaa.example", name))
    assert half.outgoing.read(2) == b"\x15\x03"
    assert said == []


@pytest.mark.parametrize("kind", [UnicodeDecodeError, ValueError])
def test_other_lost_errors_are_told(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []
    monkeypatch.setattr(sys, "__unraisablehook__", said.append)
    about = SimpleNamespace(exc_type=kind, object="text")
    ignore_bad_names(cast(Any, about))
    assert said == [about]


def test_a_handshake_without_a_certificate_fails() -> None:
    with pytest.raises(ssl.SSLError):
        MemoryClient().shake_hands(new_context((), ssl.TLSVersion.TLSv1_3))
