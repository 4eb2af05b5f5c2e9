"""Which requests may come over which connection: hosts, and certificates of clients."""

from __future__ import annotations

import hashlib
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from authority import Authority, Pair
from memory_tls import Connection

from core.errors import Forbidden, MisdirectedRequest
from core.exchange import ClientCertificate, Request
from core.section import FilePath
from proxy.tls.config import CertificateConfig, ClientCertificateConfig, HostName, TlsConfig
from proxy.tls.server import ServerTls
from proxy.tls.session import TlsSession

DAY_S = 86_400.0
Connect = Callable[..., TlsSession]


class Clock:
    ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


def request(host: str | None) -> Request:
    headers = [(b"accept", b"*/*")]
    if host is not None:
        headers.append((b"host", host.encode()))
    return Request("GET", "/", "", headers, b"", "::1", "1.1", 0.0, 0.0)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def certificates(authority: Authority) -> tuple[CertificateConfig, ...]:
    return (
        authority.issue("a.example", "*.a.example").config(),
        authority.issue("b.example").config(),
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(
    authority: Authority, certificates: tuple[CertificateConfig, ...], clock: Clock
) -> Callable[..., ServerTls]:
    def made(mode: Any = "required", names: str = "", ca: str | None = None) -> ServerTls:
        clients = ClientCertificateConfig(
            ca=FilePath(ca or authority.path), mode=mode, names=tuple(map(HostName, names.split()))
        )
        settings = TlsConfig(certificates=certificates, client_certificates=clients)
        return ServerTls(settings, clock)

    return made


@pytest.fixture
def connect(authority: Authority) -> Connect:
    def made(tls: ServerTls, sni: str | None = "a.example", pair: Pair | None = None) -> TlsSession:
        client = authority.client_context()
        client.check_hostname = False
        if pair is not None:
            pair.present(client)
        return Connection(client, tls.context, sni).tls_session()

    return made


def admitted(
    tls: ServerTls, session: TlsSession | None, host: str | None
) -> ClientCertificate | None:
    asked = request(host)
    tls.admit(session, asked)
    return asked.client_certificate


# --- hosts


def test_one_certificate_and_no_client_certificates_need_no_rules(
    certificates: tuple[CertificateConfig, ...],
) -> None:
    tls = ServerTls(TlsConfig(certificates=certificates[:1]), time.time)
    assert tls.rules is None
    assert admitted(tls, None, "any.example") is None


@pytest.mark.parametrize(
    ("sni", "host", "passes"),
    [
        ("a.example", "a.example", True),
        ("A.example", "a.EXAMPLE:8443", True),
        ("a.example", "x.a.example", True),  # the same certificate
        ("a.example", "a.example.", True),
        ("a.example", "b.example", False),
        ("b.example", "a.example", False),
        ("b.example", "b.example:443", True),
        (None, "b.example", False),
        (None, "a.example", True),
        (None, "127.0.0.1:8443", True),  # both mean the first certificate
        (None, "[::1]:8443", True),
        ("b.example", "127.0.0.1", False),
        ("b.example", None, True),  # HTTP/1.0
    ],
)
def test_a_request_for_a_host_of_another_certificate_is_misdirected(
    certificates: tuple[CertificateConfig, ...],
    connect: Connect,
    sni: str | None,
    host: str | None,
    passes: bool,
) -> None:
    tls = ServerTls(TlsConfig(certificates=certificates), time.time)
    session = connect(tls, sni)
    if passes:
        assert admitted(tls, session, host) is None
    else:
        with pytest.raises(MisdirectedRequest) as caught:
            admitted(tls, session, host)
        assert (caught.value.status, caught.value.reason) == (421, "misdirected_request")


# --- clients' certificates


def test_who_a_client_is(
    make: Callable[..., ServerTls], connect: Connect, authority: Authority
) -> None:
    pair = authority.issue("c.example", uris=["spiffe://x/agent"], days=7, subject="agent 7")
    tls = make()
    session = connect(tls, pair=pair)
    who = admitted(tls, session, "a.example")
    assert who is not None
    assert who is admitted(tls, session, "a.example")
    assert who.subject == "CN=agent 7"
    assert (who.dns_names, who.uri_names) == (("c.example",), ("spiffe://x/agent",))
    assert 6.9 * DAY_S < who.not_after - time.time() < 7 * DAY_S
    encoded = ssl.PEM_cert_to_DER_cert(Path(pair.certificate).read_text())
    assert who.fingerprint == hashlib.sha256(encoded).hexdigest()


@pytest.mark.parametrize(
    ("rule", "host", "passes"),
    [
        (("required", ""), "a.example", False),
        (("required", ""), "127.0.0.1", False),
        (("required", "x.a.example"), "x.a.example", False),
        (("required", "x.a.example"), "a.example", True),
        (("required", "*.a.example"), "y.a.example", False),
        (("required", "*.a.example"), "a.example", True),
        (("optional", ""), "a.example", True),
    ],
)
def test_where_a_certificate_is_needed(
    make: Callable[..., ServerTls], connect: Connect, rule: tuple[str, str], host: str, passes: bool
) -> None:
    tls = make(*rule)
    sni = None if host == "127.0.0.1" else host
    without = connect(tls, sni)
    if passes:
        assert admitted(tls, without, host) is None
    else:
        with pytest.raises(Forbidden) as caught:
            admitted(tls, without, host)
        assert caught.value.reason == "client_certificate_required"


@pytest.mark.parametrize("rule", [("required", ""), ("optional", ""), ("required", "x.a.example")])
def test_a_certificate_is_noted_wherever_it_is_shown(
    make: Callable[..., ServerTls], connect: Connect, authority: Authority, rule: tuple[str, str]
) -> None:
    tls = make(*rule)
    assert admitted(tls, connect(tls, "a.example", authority.issue("c")), "a.example") is not None


def test_the_host_of_the_request_counts_not_that_of_the_handshake(
    make: Callable[..., ServerTls], connect: Connect, authority: Authority
) -> None:
    """Of the same certificate, but only one needs a certificate of the client."""
    tls = make("required", "x.a.example")
    for pair in (None, authority.issue("c")):
        with pytest.raises(MisdirectedRequest):
            admitted(tls, connect(tls, "a.example", pair), "x.a.example")
        with pytest.raises(MisdirectedRequest):
            admitted(tls, connect(tls, None, pair), "x.a.example")
        with pytest.raises(MisdirectedRequest):
            admitted(tls, connect(tls, "x.a.example", pair), "a.example")


def test_a_certificate_that_expires_while_its_connection_is_open(
    make: Callable[..., ServerTls], connect: Connect, authority: Authority, clock: Clock
) -> None:
    tls = make()
    session = connect(tls, pair=authority.issue("c", days=1))
    assert admitted(tls, session, "a.example")
    clock.ahead_s = 1.01 * DAY_S
    with pytest.raises(Forbidden):
        admitted(tls, session, "a.example")


def test_a_certificate_ends_with_its_issuer(
    make: Callable[..., ServerTls], connect: Connect, tmp_path: Path, clock: Clock
) -> None:
    short = Authority(tmp_path, name="short", days=2)
    tls = make(ca=short.path)
    session = connect(tls, pair=short.issue("c", days=9))
    assert admitted(tls, session, "a.example")
    clock.ahead_s = 2.01 * DAY_S
    with pytest.raises(Forbidden):
        admitted(tls, session, "a.example")


def test_a_connection_from_before_is_refused_until_it_is_made_anew(
    make: Callable[..., ServerTls],
    connect: Connect,
    authority: Authority,
    certificates: tuple[CertificateConfig, ...],
) -> None:
    tls = ServerTls(TlsConfig(certificates=certificates), time.time)
    pair = authority.issue("c")
    old = connect(tls, pair=pair)
    clients = ClientCertificateConfig(ca=authority.path)
    tls.commit(tls.stage(TlsConfig(certificates=certificates, client_certificates=clients)))
    with pytest.raises(Forbidden):
        admitted(tls, old, "a.example")
    assert admitted(tls, connect(tls, pair=pair), "a.example")


def test_a_certificate_that_cannot_be_read_counts_for_nothing(
    make: Callable[..., ServerTls], connect: Connect, authority: Authority
) -> None:
    tls = make()
    session = connect(tls, pair=authority.issue("c"))

    class Broken:
        session_reused = False

        def getpeercert(self, binary_form: bool) -> bytes:
            return b"0"

    session._connection = Broken()  # type: ignore[assignment]
    with pytest.raises(Forbidden):
        admitted(tls, session, "a.example")
