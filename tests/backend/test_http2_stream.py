from __future__ import annotations

import pytest
from http2_wire import StreamsWire
from replica_wire import Reader

from core.errors import UpstreamReset


def test_send_only_once() -> None:
    wire = StreamsWire()
    stream, reader = wire.request()
    with pytest.raises(RuntimeError):
        stream.send(b"POST", b"/", [], b"", reader)
    wire.answer(stream, b"x")
    with pytest.raises(RuntimeError):
        stream.send(b"POST", b"/", [], b"", reader)


def test_abort_before_send_gives_the_place_back() -> None:
    wire = StreamsWire(max_streams=2)
    stream = wire.take()
    assert wire.streams.room == 1
    stream.abort()
    stream.abort()
    assert wire.streams.room == 2
    with pytest.raises(RuntimeError):
        stream.send(b"POST", b"/", [], b"", Reader())


def test_abort_after_the_end_hits_nothing() -> None:
    wire = StreamsWire()
    stream, reader = wire.request()
    wire.answer(stream, b"x")
    assert reader.ended
    stream.abort()
    stream.pause_reading()
    stream.resume_reading()
    wire.pump()
    assert wire.at_server.resets == []
    assert wire.streams.taken == 0


def test_reused_is_a_connection_that_served() -> None:
    wire = StreamsWire()
    first, _ = wire.request()
    second, _ = wire.request()
    wire.answer(first, b"x")
    third, _ = wire.request()
    assert [stream.reused for stream in (first, second, third)] == [False, False, True]


def test_the_error_of_a_lost_connection() -> None:
    wire = StreamsWire()
    stream, _ = wire.request()
    before = stream.lost("gone")
    wire.answer(stream, b"x", end=False)
    after = stream.lost("gone")
    assert isinstance(before, UpstreamReset)
    assert (before.reused, before.answered, after.answered) == (False, False, True)


def test_repr_says_what_it_is() -> None:
    wire = StreamsWire()
    stream, _ = wire.request()
    assert "stream 1" in repr(stream)
    stream.abort()
    assert "over" in repr(stream)
