from __future__ import annotations

from typing import Any, cast

import pytest
from http2_edge import Http2Listener, Http2Transport
from http2_frames import GET, PREFACE, SETTINGS_ACK, Writer, settings

from proxy.config import ListenLimits, ListenTimeouts
from proxy.http1.connection import Http1Connection
from proxy.http2.connection import Http2Connection
from proxy.listen.listener import Listener
from proxy.listen.negotiated import NegotiatedConnection

HTTP2 = PREFACE + settings() + SETTINGS_ACK + Writer().request(1, GET)
HTTP1 = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"


class FakeTls:
    def __init__(self, chosen: str | None) -> None:
        self._chosen = chosen

    def selected_alpn_protocol(self) -> str | None:
        return self._chosen


class Transport(Http2Transport):
    """Gives what is received to the protocol that is set, as a loop does."""

    def __init__(self, tls: FakeTls | None) -> None:
        super().__init__()
        self.tls = tls
        self.protocol: Any = None

    def get_extra_info(self, name: str) -> FakeTls | None:
        assert name == "ssl_object"
        return self.tls

    def set_protocol(self, protocol: object) -> None:
        self.protocol = protocol


class Beginning:
    def __init__(self, tls: FakeTls | None = None) -> None:
        self.listener = Http2Listener(ListenTimeouts(), ListenLimits())
        self.transport = Transport(tls)
        listener = cast(Listener, self.listener)
        self.transport.protocol = NegotiatedConnection(listener, "192.0.2.1", "nghttp2")
        self.transport.protocol.connection_made(self.transport)

    def send(self, *pieces: bytes) -> Beginning:
        for piece in pieces:
            self.transport.protocol.data_received(piece)
        return self

    @property
    def versions(self) -> list[str]:
        return [exchange.request.version for exchange in self.listener.begun]


def test_alpn_decides_with_tls() -> None:
    for chosen, protocol in (
        ("h2", Http2Connection),
        ("http/1.1", Http1Connection),
        (None, Http1Connection),
    ):
        beginning = Beginning(FakeTls(chosen))
        assert type(beginning.transport.protocol) is protocol
        assert beginning.listener.open == 1


def test_the_preface_decides_without_tls() -> None:
    assert Beginning().send(HTTP2).versions == ["2"]
    assert Beginning().send(HTTP1).versions == ["1.1"]


@pytest.mark.parametrize("at", [3, 10, 23, 24, 30])
def test_a_preface_may_come_in_pieces(at: int) -> None:
    beginning = Beginning().send(HTTP2[:at], HTTP2[at:])
    assert beginning.versions == ["2"]
    assert beginning.listener.open == 1


def test_a_request_may_come_in_pieces() -> None:
    assert Beginning().send(*(bytes([byte]) for byte in HTTP1)).versions == ["1.1"]


def test_what_only_begins_like_the_preface_is_http1() -> None:
    beginning = Beginning().send(PREFACE[:16], b"Host: a\r\n\r\n")
    assert beginning.listener.begun == []
    assert beginning.transport.written.startswith(b"HTTP/1.1 400 ")


def test_a_silent_connection_has_the_deadline_of_a_head() -> None:
    beginning = Beginning().send(PREFACE[:10])
    http1 = beginning.transport.protocol._http1
    assert http1.deadline_at == beginning.listener.clock + ListenTimeouts().head_s
    http1.on_deadline(http1.deadline_at)
    assert beginning.transport.closed


def test_a_connection_that_ends_before_it_spoke_is_counted_out() -> None:
    beginning = Beginning()
    beginning.transport.protocol.connection_lost(None)
    assert beginning.listener.open == 0
