"""The ring inside OpenSSL: which key a ticket is made with, and that nothing there can raise."""

from __future__ import annotations

import _ssl
import gc
import ssl
import sys
from collections.abc import Sequence

import pytest
from authority import Authority
from memory_tls import Connection

from proxy.tls.context import ServerContext, new_context
from proxy.tls.ticket_keys import OPEN, TicketKey
from proxy.tls.ticket_ring import OpenSsl, TicketRing, Unreachable


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


class Keys:
    """Keys by number; each period has one, and the one before it."""

    def __init__(self) -> None:
        self.period = 1
        self.broken = False

    def period_at(self, now: float) -> int:
        if self.broken:
            raise RuntimeError("on purpose")
        return self.period

    def ring(self, period: int, policy: bytes) -> Sequence[TicketKey]:
        return [TicketKey.from_bytes(bytes([n]) * 80) for n in (period, period - 1)]


class Server:
    """One context that has a certificate and a ring."""

    def __init__(self, authority: Authority, policy: bytes = OPEN) -> None:
        self.keys = Keys()
        self.context = authority.issue("a.example").present(new_context((), ssl.TLSVersion.TLSv1_3))
        assert isinstance(self.context, ServerContext)
        self.context.ring = TicketRing(OpenSsl(), lambda: 0.0)
        self.context.ring.install(self.context)
        self.context.ring.use(self.keys, policy, self.context, [])


def test_a_ticket_begins_with_the_name_of_its_key(authority: Authority) -> None:
    server = Server(authority)
    client = authority.client_context()
    for period in (1, 2, 3):
        server.keys.period = period
        made = Connection(client, server.context)
        assert bytes([period]) * 16 in ticket_of(made)


def ticket_of(connection: Connection) -> bytes:
    """What the client shows when it comes again."""
    outgoing = ssl.MemoryBIO()
    again = connection.client.context.wrap_bio(
        ssl.MemoryBIO(), outgoing, server_hostname="a.example", session=connection.session
    )
    with pytest.raises(ssl.SSLWantReadError):
        again.do_handshake()
    return outgoing.read()


def test_the_key_before_still_opens_and_is_replaced(authority: Authority) -> None:
    server = Server(authority)
    client = authority.client_context()
    session = Connection(client, server.context).session
    for period in (2, 3, 4):
        server.keys.period = period
        gc.collect()  # the keys' buffers must be held by more than luck
        again = Connection(client, server.context, session=session)
        assert again.resumed
        assert bytes([period]) * 16 in ticket_of(again)
        session = again.session
    server.keys.period = 6
    assert not Connection(client, server.context, session=session).resumed


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="Python sets each connection's own")
def test_policies_are_told_apart_even_with_the_same_keys(authority: Authority) -> None:
    """By the session id context: these keys do not depend on the policy."""
    one, other = Server(authority), Server(authority, b"other")
    client = authority.client_context()
    session = Connection(client, one.context).session
    assert not Connection(client, other.context, session=session).resumed
    assert Connection(client, one.context, session=session).resumed


def test_broken_keys_cost_the_resumption_and_nothing_more(authority: Authority) -> None:
    server = Server(authority)
    client = authority.client_context()
    session = Connection(client, server.context).session
    server.keys.broken = True
    assert not Connection(client, server.context, session=session).resumed


def test_a_ticket_that_was_changed_is_not_taken(authority: Authority) -> None:
    server, liar = Server(authority), Server(authority)
    client = authority.client_context()
    session = Connection(client, server.context).session
    assert Connection(client, liar.context, session=session).resumed
    liar.keys.ring = lambda period, policy: [  # type: ignore[method-assign]
        TicketKey(bytes([1]) * 16, bytes(32), bytes(32))
    ]
    liar.keys.period = 2
    assert not Connection(client, liar.context, session=session).resumed


def test_where_openssl_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys.implementation, "name", "other")
        with pytest.raises(Unreachable, match="not CPython"):
            OpenSsl()
    with monkeypatch.context() as patch:
        patch.setattr(ssl, "OPENSSL_VERSION_INFO", (1, 1, 1, 0, 0))
        with pytest.raises(Unreachable, match="not OpenSSL 3"):
            OpenSsl()
    with monkeypatch.context() as patch:
        patch.delattr(_ssl, "__file__")
        with pytest.raises(Unreachable, match="not a shared library"):
            OpenSsl()
    with monkeypatch.context() as patch:
        patch.setattr(ssl, "OPENSSL_VERSION_NUMBER", 1)
        with pytest.raises(Unreachable, match="another OpenSSL"):
            OpenSsl()
