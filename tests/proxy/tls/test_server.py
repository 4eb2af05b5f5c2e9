"""TLS towards clients, by handshakes in memory: certificates, tickets, what a change does."""

from __future__ import annotations

import secrets
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from authority import Authority, Pair
from memory_tls import Connection

from core.errors import ConfigError, Forbidden
from core.exchange import Request
from core.section import FilePath, Secret
from proxy.tls import server as tls_module
from proxy.tls.config import ClientCertificateConfig, HostName, TicketConfig, TlsConfig
from proxy.tls.server import ServerTls
from proxy.tls.ticket_keys import ROTATION_S
from proxy.tls.ticket_ring import Unreachable

Settings = Callable[..., TlsConfig]


class Clock:
    """Wall-clock time, moved by hand."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("a.example")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def secret(tmp_path: Path) -> TicketConfig:
    """A secret that several hosts may share."""
    path = tmp_path / "secret"
    path.write_text(secrets.token_hex(32) + "\n")
    return TicketConfig(secret=Secret(f"file:{path}"))


def settings(*pairs: Pair, ca: str | None = None, names: str = "", **more: Any) -> TlsConfig:
    clients = None
    if ca is not None:
        hosts = tuple(map(HostName, names.split()))
        clients = ClientCertificateConfig(ca=FilePath(ca), names=hosts)
    return TlsConfig(
        certificates=tuple(pair.config() for pair in pairs), client_certificates=clients, **more
    )


def unreachable() -> None:
    raise Unreachable("it is not there")


def shown_in(pair: Pair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(Path(pair.certificate).read_text())


def request(host: str = "a.example") -> Request:
    return Request("GET", "/", "", [(b"host", host.encode())], b"", "::1", "1.1", 0.0, 0.0)


# --- the context


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_the_context_is_strict(pair: Pair, clock: Clock, version: Any) -> None:
    context = ServerTls(settings(pair, minimum_version=version), clock).context
    assert context.minimum_version == ssl.TLSVersion[f"TLSv1_{version[-1]}"]
    assert context.options & ssl.OP_NO_COMPRESSION
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.num_tickets > 0
    assert not context.options & ssl.OP_NO_TICKET
    assert context.verify_mode == ssl.CERT_NONE


def test_tls_1_2_is_refused_unless_configured(authority: Authority, pair: Pair) -> None:
    client = authority.client_context()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
        Connection(client, ServerTls(settings(pair), time.time).context)
    allowed = ServerTls(settings(pair, minimum_version="1.2"), time.time)
    first = Connection(client, allowed.context)
    assert first.server.version() == "TLSv1.2"
    assert Connection(client, allowed.context, session=first.session).resumed


def test_the_protocol_is_negotiated_after_the_switch(authority: Authority, pair: Pair) -> None:
    client = authority.client_context()
    client.set_alpn_protocols(["h2", "http/1.1"])
    server = ServerTls(settings(pair), time.time, alpn=("h2", "http/1.1"))
    assert Connection(client, server.context).server.selected_alpn_protocol() == "h2"


# --- certificates


def test_the_certificate_is_chosen_by_the_name(authority: Authority) -> None:
    first, second, third = (
        authority.issue("a.example"),
        authority.issue("b.example", "*.b.example", kind="rsa"),
        authority.issue("c.example", "d.example"),
    )
    config = TlsConfig(certificates=(first.config(), second.config(), third.config("d.example")))
    server = ServerTls(config, time.time)
    client = authority.client_context()
    client.check_hostname = False
    for name, pair in [
        ("a.example", first),
        ("b.example", second),
        ("X.B.example", second),
        ("b.example.", second),
        ("d.example", third),
        ("c.example", first),  # `names` leave it out
        ("other.example", first),
        (None, first),
    ]:
        connection = Connection(client, server.context, name)
        assert connection.shown == shown_in(pair), name
        assert connection.server.sni == (name.lower().rstrip(".") if name else None)


def test_staging_has_no_effect_and_committing_swaps(authority: Authority) -> None:
    old, new = authority.issue("a.example"), authority.issue("a.example", kind="rsa")
    server = ServerTls(settings(old), time.time)
    client = authority.client_context()
    before = Connection(client, server.context)
    staged = server.stage(settings(new))
    assert Connection(client, server.context).shown == shown_in(old)
    server.commit(staged)
    assert Connection(client, server.context).shown == shown_in(new)
    assert Connection(client, server.context, session=before.session).resumed


def test_a_bad_change_changes_nothing(authority: Authority, pair: Pair, tmp_path: Path) -> None:
    server = ServerTls(settings(pair), time.time)
    bad = Pair(pair.certificate, FilePath(tmp_path / "none"))
    with pytest.raises(ConfigError):
        server.stage(settings(bad))
    client = authority.client_context()
    first = Connection(client, server.context)
    assert Connection(client, server.context, session=first.session).resumed


def test_every_fault_is_one_line_with_its_place(authority: Authority, tmp_path: Path) -> None:
    good, bad = authority.issue("a.example"), authority.issue("b.example", since=-9, days=-1)
    (tmp_path / "empty").write_text("")
    files = tuple(FilePath(tmp_path / name) for name in ("1", "2", "3"))
    for path in files:
        Path(path).write_bytes(bytes(48))
    with pytest.raises(ConfigError) as caught:
        ServerTls(
            settings(good, bad, ca=str(tmp_path / "empty"), tickets=TicketConfig(files=files)),
            time.time,
        )
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "$.listen.tls.client_certificates.ca",
        "$.listen.tls.certificates[1]",
        "$.listen.tls.tickets",
    ]
    assert "1 has 48 bytes; a ticket key has 80" in lines[2]
    with pytest.raises(ConfigError, match=r"names\[0\]: no certificate covers `x\.example`"):
        ServerTls(settings(good, ca=authority.path, names="x.example"), time.time)


def test_a_short_secret_is_refused(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHORT", "too-short")
    with pytest.raises(
        ConfigError, match="the secret has 9 characters; give at least 32"
    ) as caught:
        ServerTls(settings(pair, tickets=TicketConfig(secret=Secret("env:SHORT"))), time.time)
    assert "too-short" not in str(caught.value)


def test_what_expires_soon_is_warned_of(authority: Authority, tmp_path: Path) -> None:
    soon = authority.issue("b.example", days=3)
    clients = Authority(tmp_path, days=5)
    server = ServerTls(settings(authority.issue("a.example"), soon, ca=clients.path), time.time)
    assert server.warnings() == [
        "$.listen.tls.certificates[1].certificate: expires in 3.0 days",
        "$.listen.tls.client_certificates.ca: expires in 5.0 days",
    ]


def test_what_is_in_force_may_expire_without_keeping_other_changes_away(
    authority: Authority, pair: Pair, clock: Clock
) -> None:
    server = ServerTls(settings(pair, ca=authority.path), clock)
    clock.ahead_s = 400 * 86_400.0
    server.commit(server.stage(settings(pair, ca=authority.path, minimum_version="1.2")))
    assert server.context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert [line.rpartition(": ")[2] for line in server.warnings()] == ["expired", "expired"]
    with pytest.raises(ConfigError, match=r"the certificate .* expired on"):
        server.stage(settings(authority.issue("a.example")))
    with pytest.raises(ConfigError, match="expired on"):
        ServerTls(settings(pair), clock)


# --- tickets


def test_two_hosts_with_one_secret_take_each_others_tickets(
    authority: Authority, pair: Pair, secret: TicketConfig, clock: Clock
) -> None:
    """Across a rotation, too, and with clocks that differ by almost one."""
    ahead = Clock()
    ahead.ahead_s = ROTATION_S * 0.99
    here = ServerTls(settings(pair, tickets=secret), clock)
    there = ServerTls(settings(authority.issue("a.example"), tickets=secret), ahead)
    assert here.ticket_source == "secret"
    client = authority.client_context()
    session = Connection(client, here.context).session
    for _ in range(3):
        for server in (there, here, there):
            connection = Connection(client, server.context, session=session)
            assert connection.resumed
            session = connection.session
        clock.ahead_s += ROTATION_S
        ahead.ahead_s += ROTATION_S


def test_a_retired_key_opens_nothing(authority: Authority, pair: Pair, clock: Clock) -> None:
    server = ServerTls(settings(pair), clock)
    assert server.ticket_source == "memory"
    client = authority.client_context()
    session = Connection(client, server.context).session
    clock.ahead_s += ROTATION_S
    assert Connection(client, server.context, session=session).resumed
    clock.ahead_s += ROTATION_S
    assert not Connection(client, server.context, session=session).resumed


def test_other_secrets_share_no_tickets(authority: Authority, pair: Pair) -> None:
    client = authority.client_context()
    first = Connection(client, ServerTls(settings(pair), time.time).context)
    assert not Connection(
        client, ServerTls(settings(pair), time.time).context, session=first.session
    ).resumed


def test_keys_from_files_are_rotated_by_a_change(
    authority: Authority, pair: Pair, tmp_path: Path
) -> None:
    paths = [FilePath(tmp_path / str(n)) for n in range(4)]
    for path in paths:
        Path(path).write_bytes(secrets.token_bytes(80))
    one, two, three, four = paths
    client = authority.client_context()
    before = ServerTls(settings(pair, tickets=TicketConfig(files=(two, one, three))), time.time)
    after = ServerTls(settings(pair, tickets=TicketConfig(files=(three, two, four))), time.time)
    assert before.ticket_source == "files"
    for old, new in [(before, after), (after, before)]:
        session = Connection(client, old.context).session
        assert Connection(client, new.context, session=session).resumed
    session = Connection(client, before.context).session
    before.commit(before.stage(settings(pair, tickets=TicketConfig(files=(three, two, four)))))
    renewed = Connection(client, before.context, session=session)
    assert renewed.resumed
    before.commit(before.stage(settings(pair, tickets=TicketConfig(files=(four, three, one)))))
    assert not Connection(client, before.context, session=session).resumed
    assert Connection(client, before.context, session=renewed.session).resumed


def test_tickets_do_not_cross_policies(
    authority: Authority, pair: Pair, secret: TicketConfig, tmp_path: Path
) -> None:
    """From an open listener to one that asks for certificates, back, and between authorities."""
    other = Authority(tmp_path, name="other")
    servers = [
        ServerTls(settings(pair, tickets=secret, ca=ca), time.time)
        for ca in (None, authority.path, other.path)
    ]
    client = authority.client_context()
    for index, server in enumerate(servers):
        session = Connection(client, server.context).session
        for number, target in enumerate(servers):
            again = Connection(client, target.context, session=session)
            assert again.resumed == (number == index)


def test_without_the_ring_openssl_keeps_its_key(
    authority: Authority, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_module, "OpenSsl", unreachable)
    server = ServerTls(settings(pair), time.time)
    assert server.ticket_source == "openssl"
    assert server.warnings() == [
        "$.listen.tls.tickets: session tickets have OpenSSL's own key, which no other gateway "
        "shares and which is never changed: it is not there"
    ]
    client = authority.client_context()
    first = Connection(client, server.context)
    assert Connection(client, server.context, session=first.session).resumed
    server.commit(server.stage(settings(pair, ca=authority.path)))
    asked = Connection(client, server.context, session=first.session)
    assert not asked.resumed
    assert asked.client.session is not None
    assert not asked.client.session.has_ticket
    server.commit(server.stage(settings(pair)))
    assert Connection(client, server.context, session=first.session).resumed


# --- clients' certificates


def test_a_change_of_authorities_counts_for_open_connections_and_old_tickets(
    authority: Authority, pair: Pair, tmp_path: Path
) -> None:
    old, new = Authority(tmp_path, name="old"), Authority(tmp_path, name="new")
    both = tmp_path / "both.pem"
    both.write_bytes(Path(old.path).read_bytes() + Path(new.path).read_bytes())
    server = ServerTls(settings(pair, ca=old.path), time.time)
    client = old.issue("c").present(authority.client_context())
    first = Connection(client, server.context)
    session = first.tls_session()
    server.admit(session, request())
    server.commit(server.stage(settings(pair, ca=str(both))))
    server.admit(session, request())  # still trusted, as one of two
    server.commit(server.stage(settings(pair, ca=new.path)))
    with pytest.raises(Forbidden):
        server.admit(session, request())
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        Connection(client, server.context, session=first.session)


def test_a_handshake_that_a_change_overtakes_leaves_no_ticket(
    authority: Authority, pair: Pair, tmp_path: Path
) -> None:
    """Its certificate was verified by authorities that are gone when its ticket is made."""
    old, new = Authority(tmp_path, name="old"), Authority(tmp_path, name="new")
    server = ServerTls(settings(pair, ca=old.path), time.time)
    client = old.issue("c").present(authority.client_context())
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    late = client.wrap_bio(to_client, to_server, server_hostname="a.example")
    served: Any = server.context.wrap_bio(to_server, to_client, server_side=True)
    for side in (late, served):
        with pytest.raises(ssl.SSLWantReadError):
            side.do_handshake()
    server.commit(server.stage(settings(pair, ca=new.path)))
    late.do_handshake()
    served.do_handshake()
    served.write(b"x")
    late.read(1)
    assert late.session is not None
    assert late.session.has_ticket
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        Connection(client, server.context, session=late.session)
