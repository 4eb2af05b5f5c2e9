"""The streams of a connection, on both engines, without a socket."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable

import pytest
from http2_wire import SSE, StreamsWire
from hypothesis import given
from hypothesis import strategies as st
from replica_wire import Reader

from backend.dialer import OPTIONS
from backend.http2_streams import LAST_STREAM_ID, MAX_RESETS, MAX_STREAMS
from core.errors import UpstreamProtocolError, UpstreamReset
from core.exchange import Header
from core.http2 import frames
from core.http2.engine import EngineOptions, ErrorCode
from core.http2.engines import EngineName

ENGINES: list[EngineName] = ["nghttp2", "h2"]
NewWire = Callable[..., StreamsWire]


@pytest.fixture(params=itertools.product(ENGINES, ENGINES), ids="-".join)
def new_wire(request: pytest.FixtureRequest) -> NewWire:
    client, server = request.param
    return lambda **options: StreamsWire(client, server, **options)


def test_a_request_and_its_answer(new_wire: NewWire) -> None:
    wire = new_wire()
    assert wire.settlements == 1
    stream, reader = wire.request(b'{"a":1}')
    assert wire.at_server.heads[stream.id] == [
        (b":method", b"POST"),
        (b":path", b"/v1/x"),
        (b":scheme", b"http"),
        (b":authority", b"replica:8000"),
        (b"accept-encoding", b"identity"),
        (b"authorization", b"Bearer k"),
        (b"x-a", b"b"),
        (b"content-length", b"7"),
    ]
    assert wire.at_server.bodies[stream.id] == b'{"a":1}'
    assert stream.id in wire.at_server.ended
    wire.answer(stream, b"data: 1\n\n", b"data: [DONE]\n\n")
    assert (reader.status, reader.headers) == (200, [(b"content-type", b"text/event-stream")])
    assert reader.body == b"data: 1\n\ndata: [DONE]\n\n"
    assert reader.ended
    assert (wire.streams.taken, wire.streams.served, wire.streams.all) == (0, 1, [])


def test_a_thousand_small_frames_of_one_read_are_one_call(new_wire: NewWire) -> None:
    wire = new_wire()
    stream, reader = wire.request()
    wire.server.respond(stream.id, SSE, False)
    raw = b""
    for _ in range(1000):
        wire.server.send(stream.id, b"data: x\n\n")
        raw += wire.server.outgoing()
    wire.streams.engine.receive(raw)
    assert reader.reads == [b"data: x\n\n" * 1000]


@given(
    bodies=st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=5),
    cuts=st.lists(st.integers(0, 600), max_size=8),
    trailers=st.booleans(),
)
@pytest.mark.parametrize("client", ENGINES)
def test_any_split_gives_the_same_answers(
    client: EngineName, bodies: list[bytes], cuts: list[int], trailers: bool
) -> None:
    wire = StreamsWire(client)
    exchanges = [wire.request() for _ in bodies]
    raw = b""
    for (stream, _), body in zip(exchanges, bodies, strict=True):
        wire.server.respond(stream.id, SSE, False)
        half = len(body) // 2
        wire.server.send(stream.id, body[:half])
        raw += wire.server.outgoing()
        wire.server.send(stream.id, body[half:], not trailers)
        raw += wire.server.outgoing()
        if trailers:  # one field, literal and not indexed: "a: b" (RFC 7541 section 6.2.2)
            block = b"\x00\x01a\x01b"
            flags = frames.END_HEADERS | frames.END_STREAM
            raw += frames.frame(frames.HEADERS, flags, stream.id, block)
    edges = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    for start, end in itertools.pairwise(edges):
        wire.streams.engine.receive(raw[start:end])
    for (_, reader), body in zip(exchanges, bodies, strict=True):
        assert (reader.status, reader.body, reader.ended) == (200, body, True)
    assert wire.streams.taken == 0


def test_an_answer_without_a_body(new_wire: NewWire) -> None:
    wire = new_wire()
    stream, reader = wire.request()
    wire.server.respond(stream.id, [(b":status", b"204")], True)
    wire.pump()
    assert (reader.status, reader.ended) == (204, True)


def test_abort_resets_that_stream_alone(new_wire: NewWire) -> None:
    wire = new_wire()
    (one, gone), (other, stays) = wire.request(), wire.request()
    wire.answer(one, b"x", end=False)
    one.abort()
    wire.pump()
    assert wire.at_server.resets == [(one.id, ErrorCode.CANCEL, True)]
    assert wire.streams.taken == 1
    wire.server.send(one.id, b"too late")  # was under way
    wire.answer(other, b"y")
    assert (gone.body, gone.over) == (b"x", False)
    assert (stays.body, stays.ended) == (b"y", True)


def test_a_reset_ends_that_stream_alone(new_wire: NewWire) -> None:
    wire = new_wire()
    (one, first), (two, second), (other, stays) = (wire.request() for _ in range(3))
    wire.answer(one, b"x", end=False)
    for stream in (one, two):
        wire.server.reset(stream.id, ErrorCode.INTERNAL_ERROR)
    wire.answer(other, b"y")
    assert stays.ended
    for reader, answered in ((first, True), (second, False)):
        assert isinstance(reader.error, UpstreamReset)
        # Its own doing, not the connection's: no free second try on the same replica.
        assert (reader.error.reused, reader.error.answered) == (False, answered)
        assert reader.error.retryable


def test_a_refused_stream_was_not_acted_upon(new_wire: NewWire) -> None:
    wire = new_wire()
    wire.answer(wire.request()[0], b"x")
    stream, reader = wire.request()
    wire.server.reset(stream.id, ErrorCode.REFUSED_STREAM)
    wire.pump()
    assert isinstance(reader.error, UpstreamReset)
    assert (reader.error.reused, reader.error.answered) == (True, False)
    assert wire.streams.room > 0


def test_goaway_fails_what_was_not_acted_upon_and_lets_the_rest_end(new_wire: NewWire) -> None:
    wire = new_wire()
    wire.answer(wire.request()[0], b"warm")
    stream, reader = wire.request()
    late, unseen = wire.take(), Reader()
    late.send(b"POST", b"/", [], b"", unseen)  # crosses the GOAWAY
    wire.streams.engine.outgoing()
    wire.server.goaway()
    wire.streams.engine.receive(wire.server.outgoing())
    assert isinstance(unseen.error, UpstreamReset)
    assert (unseen.error.reused, unseen.error.answered) == (True, False)
    assert wire.streams.draining
    assert wire.streams.room == 0
    wire.server.respond(stream.id, SSE, False)
    wire.server.send(stream.id, b"y", True)
    wire.streams.engine.receive(wire.server.outgoing())
    assert (reader.body, reader.ended) == (b"y", True)
    assert wire.streams.taken == 0


def test_a_notice_of_shutdown_fails_nothing(new_wire: NewWire) -> None:
    wire = new_wire()
    stream, reader = wire.request()
    wire.server.shutdown_notice()
    wire.pump()
    assert wire.streams.draining
    wire.answer(stream, b"y")
    assert reader.ended


def test_no_request_after_goaway(new_wire: NewWire) -> None:
    wire = new_wire()
    place = wire.take()
    wire.server.goaway()
    wire.pump()
    reader = Reader()
    place.send(b"POST", b"/", [], b"", reader)
    assert isinstance(reader.error, UpstreamReset)
    assert not reader.error.answered
    assert wire.streams.taken == 0


def test_the_replicas_limit_of_streams(new_wire: NewWire) -> None:
    assert new_wire().streams.room == 100
    assert new_wire(max_streams=1000).streams.room == MAX_STREAMS
    wire = new_wire(max_streams=2)
    (stream, _), _ = wire.request(), wire.request()
    assert wire.streams.room == 0
    wire.answer(stream, b"x")
    assert wire.streams.room == 1


def test_a_large_body_goes_as_the_window_opens(new_wire: NewWire) -> None:
    wire = new_wire(stream_window=1000)
    wire.at_server.consuming = False
    body = bytes(range(256)) * 40
    stream, reader = wire.request(body)
    assert wire.at_server.bodies[stream.id] == body[:1000]
    wire.at_server.consuming = True
    wire.server.consumed(stream.id, 1000)
    wire.pump()
    assert wire.at_server.bodies[stream.id] == body
    wire.answer(stream, b"x")
    assert reader.ended


def test_an_answer_before_the_request_was_sent_whole(new_wire: NewWire) -> None:
    wire = new_wire(stream_window=1000)
    wire.at_server.consuming = False
    stream, reader = wire.request(b"x" * 5000)
    wire.server.respond(stream.id, [(b":status", b"413")], True)
    wire.pump()
    assert (reader.status, reader.ended) == (413, True)
    assert wire.at_server.resets == [(stream.id, ErrorCode.NO_ERROR, True)]
    assert wire.streams.engine.total_waiting == 0


def test_a_window_that_never_opens_holds_up_its_own_stream_alone(new_wire: NewWire) -> None:
    wire = new_wire(stream_window=0)
    _, stuck = wire.request(b"body")
    bodiless = wire.take()
    reader = Reader()
    bodiless.send(b"GET", b"/health", [], b"", reader)
    wire.pump()
    wire.answer(bodiless, b"ok")
    assert (reader.ended, stuck.over) == (True, False)


class TestFlowControl:
    def test_paused_the_replica_may_send_a_window_and_no_more(self, new_wire: NewWire) -> None:
        wire = new_wire()
        (slow, held_up), (other, flows) = wire.request(), wire.request()
        wire.server.respond(slow.id, SSE, False)
        slow.pause_reading()
        slow.pause_reading()
        wire.server.send(slow.id, b"x" * 1_000_000, True)
        wire.answer(other, b"y" * 1_000_000)
        assert (len(flows.body), flows.ended) == (1_000_000, True)
        assert len(held_up.body) == OPTIONS.stream_window
        assert wire.server.waiting(slow.id) == 1_000_000 - OPTIONS.stream_window
        slow.resume_reading()
        wire.pump()
        assert (len(held_up.body), held_up.ended) == (1_000_000, True)

    def test_paused_by_the_handler_itself(self, new_wire: NewWire) -> None:
        wire = new_wire()
        stream, reader = wire.request()
        reader.on_each_body = stream.pause_reading
        wire.server.respond(stream.id, SSE, False)
        wire.server.send(stream.id, b"x" * 600_000)
        wire.pump()
        assert len(reader.body) == OPTIONS.stream_window
        while len(reader.body) < 600_000:
            stream.resume_reading()
            wire.pump()
        assert stream.held == 600_000 - 2 * OPTIONS.stream_window

    @pytest.mark.parametrize("how", ["abort", "abort at once", "end", "reset", "fail"])
    def test_what_was_held_is_given_back_to_the_connection(
        self, new_wire: NewWire, how: str
    ) -> None:
        """Otherwise one stream after the other would shut the connection's window."""
        client = EngineOptions("client", 60_000, 100_000)
        wire = new_wire(client_options=client)
        for _ in range(6):
            stream, reader = wire.request()
            stream.pause_reading()
            if how == "abort at once":
                reader.on_each_body = stream.abort
            wire.answer(stream, b"x" * 50_000, end=how == "end")
            assert len(reader.body) > 10_000
            if how == "abort":
                stream.abort()
            elif how == "reset":
                wire.server.reset(stream.id, ErrorCode.INTERNAL_ERROR)
            elif how == "fail":
                wire.streams.fail(stream, UpstreamReset("", reused=False, answered=True))
            wire.pump()
        assert wire.streams.taken == 0

    def test_what_comes_after_an_abort_is_given_back_too(self, new_wire: NewWire) -> None:
        wire = new_wire(client_options=EngineOptions("client", 60_000, 100_000))
        for _ in range(20):
            stream, _ = wire.request()
            wire.server.respond(stream.id, SSE, False)
            wire.server.send(stream.id, b"x" * 50_000)
            under_way = wire.server.outgoing()
            stream.abort()
            wire.streams.engine.receive(under_way)
            wire.pump()
        stream, reader = wire.request()
        wire.answer(stream, b"x" * 50_000)
        assert reader.ended


BAD_HEADS: dict[str, list[Header]] = {
    "an interim status as the final one": [(b":status", b"600")],
    "a status that is no number": [(b":status", b"2x0")],
    "too many headers": [(b":status", b"200"), *[(b"x-a", b"b")] * 300],
}


@pytest.mark.parametrize("headers", BAD_HEADS.values(), ids=BAD_HEADS)
def test_a_bad_head_ends_its_own_stream(new_wire: NewWire, headers: list[Header]) -> None:
    wire = new_wire()
    (bad, reader), (other, stays) = wire.request(), wire.request()
    wire.server.respond(bad.id, headers, False)
    wire.pump()
    assert isinstance(reader.error, UpstreamProtocolError)
    assert [reset[0] for reset in wire.at_server.resets] == [bad.id]
    wire.answer(other, b"y")
    assert stays.ended


def test_a_body_that_is_not_as_long_as_announced_ends_its_own_stream() -> None:
    wire = StreamsWire("nghttp2")  # to h2 that is a fault of the connection
    (bad, reader), (other, stays) = wire.request(), wire.request()
    wire.server.respond(bad.id, [(b":status", b"200"), (b"content-length", b"5")], False)
    wire.server.send(bad.id, b"four", True)
    wire.answer(other, b"y")
    assert isinstance(reader.error, UpstreamProtocolError)
    assert stays.ended


@pytest.mark.parametrize("client", ENGINES)
def test_a_large_head_ends_its_own_stream(client: EngineName) -> None:
    wire = StreamsWire(client, "h2")  # libnghttp2 does not send such a one
    (bad, reader), (other, stays) = wire.request(), wire.request()
    large = [(b"x-%d" % number, b"b" * 1000) for number in range(70)]
    wire.server.respond(bad.id, [(b":status", b"200"), *large], False)
    wire.answer(other, b"y")
    assert isinstance(reader.error, UpstreamProtocolError)
    assert stays.ended


def test_a_handler_that_fails_ends_its_own_exchange(
    new_wire: NewWire, caplog: pytest.LogCaptureFixture
) -> None:
    def stumble() -> None:
        raise ValueError("a bug")

    wire = new_wire()
    (one, reader), (other, stays) = wire.request(), wire.request()
    reader.on_each_body = stumble
    with caplog.at_level(logging.ERROR):
        wire.answer(one, b"x", end=False)
    assert reader.error is not None
    assert "a bug" in caplog.text
    wire.answer(other, b"y")
    assert stays.ended
    assert wire.streams.taken == 0


def test_fail_all_tells_everybody(new_wire: NewWire) -> None:
    wire = new_wire()
    exchanges = [wire.request() for _ in range(3)]
    wire.answer(exchanges[0][0], b"x", end=False)
    wire.streams.fail_all(lambda stream: stream.lost("gone"))
    errors = [reader.error for _, reader in exchanges]
    assert [isinstance(error, UpstreamReset) and error.answered for error in errors] == [1, 0, 0]
    assert (wire.streams.taken, wire.streams.room) == (0, 0)


def test_a_connection_is_spared_too_many_cancellations(new_wire: NewWire) -> None:
    wire = new_wire()
    for number in range(MAX_RESETS):
        assert not wire.streams.draining, number
        wire.request()[0].abort()
        wire.pump()
    assert wire.streams.draining
    assert wire.streams.taken == 0


def test_the_last_stream_id_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = StreamsWire()
    monkeypatch.setattr(wire.streams.engine, "request", lambda *_: LAST_STREAM_ID)
    wire.request()
    assert wire.streams.draining
    assert "draining" in repr(wire.streams)
