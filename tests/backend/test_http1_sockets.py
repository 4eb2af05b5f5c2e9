from __future__ import annotations

from typing import Any

from replica_wire import Reader, Transport

from backend.config import PoolConfig
from backend.http1_protocol import Http1Protocol
from backend.http1_sockets import Http1Sockets
from backend.request_head import RequestHead
from core.errors import UpstreamReset

HELLO = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Sockets(Http1Sockets):
    """With a clock of their own and transports in memory."""

    def __init__(self, **options: Any) -> None:
        self.now = 0.0
        super().__init__("r", PoolConfig(warm=0, **options), lambda: self.now)

    def open_one(self) -> tuple[Http1Protocol, Transport]:
        protocol, transport = Http1Protocol(self, RequestHead(b"r")), Transport()
        protocol.connection_made(transport)  # type: ignore[arg-type]
        return protocol, transport

    def begin(self) -> tuple[Http1Protocol, Reader]:
        protocol = self.take() or self.open_one()[0]
        reader = Reader()
        self.hold(protocol).send(b"POST", b"/", [], b"", reader)
        return protocol, reader

    def ask(self) -> Http1Protocol:
        protocol, reader = self.begin()
        protocol.data_received(HELLO)
        assert reader.ended
        return protocol


def test_the_last_one_first() -> None:
    sockets = Sockets()
    begun = [sockets.begin()[0] for _ in range(3)]
    for protocol in begun:
        protocol.data_received(HELLO)
    assert sockets.ask() is begun[2]
    assert (len(sockets.idle), len(sockets.busy)) == (3, 0)


def test_not_after_it_was_idle_for_too_long() -> None:
    sockets = Sockets()
    first = sockets.ask()
    sockets.now = 3.9
    assert sockets.ask() is first
    sockets.now += 4.0
    assert sockets.take() is None
    sockets.now += 4.0
    sockets.tick(sockets.now)
    assert sockets.idle == {}


def test_no_more_idle_ones_than_allowed() -> None:
    sockets = Sockets(max_idle=1)
    (one, _), (two, _) = sockets.begin(), sockets.begin()
    one.data_received(HELLO)
    two.data_received(HELLO)
    assert list(sockets.idle) == [one]
    sockets.keep(sockets.open_one()[0])
    assert list(sockets.idle) == [one]


def test_closed_after_use_once_it_is_closing() -> None:
    sockets = Sockets()
    protocol, _ = sockets.begin()
    sockets.open = False
    protocol.data_received(HELLO)
    assert sockets.idle == {}
    assert not protocol.usable


def test_reads_outlive_their_socket() -> None:
    sockets = Sockets()
    protocol, _ = sockets.begin()
    protocol.data_received(HEAD)
    protocol.data_received(b"1\r\na\r\n")
    assert sockets.reads == 2
    protocol.connection_lost(None)
    assert (sockets.reads, sockets.busy) == (2, set())
    assert "0 busy" in repr(sockets)


def test_a_diverted_response_makes_progress_by_its_handlers_word() -> None:
    sockets = Sockets()
    protocol, reader = sockets.begin()
    protocol.data_received(HEAD)
    protocol.divert(reader.reads.append)
    heard, before = sockets.reads, sockets.progress_of_each()
    protocol.data_received(b"1\r\na\r\n")
    assert sockets.reads > heard
    sockets.fail_silent(before, "silent")
    assert not reader.over
    sockets.fail_silent(sockets.progress_of_each(), "silent")
    assert isinstance(reader.error, UpstreamReset)


def test_silent_ones_fail_and_flowing_ones_do_not() -> None:
    sockets = Sockets()
    (flowing, flows), (_, silent) = sockets.begin(), sockets.begin()
    flowing.data_received(HEAD)
    before = sockets.progress_of_each()
    flowing.data_received(b"1\r\na\r\n")
    sockets.fail_silent(before, "silent")
    assert isinstance(silent.error, UpstreamReset)
    assert not silent.error.answered
    assert not flows.over
