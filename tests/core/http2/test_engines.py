"""Every engine, in both roles and against each other."""

from __future__ import annotations

import itertools

import pytest
from http2_pair import OK, REQUEST, Pair

from core.http2.engine import UNLIMITED, EngineOptions, ErrorCode
from core.http2.engines import EngineName

NAMES: list[EngineName] = ["nghttp2", "h2"]


@pytest.fixture(params=list(itertools.product(NAMES, NAMES)), ids="-".join)
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(*request.param)


def small_windows(pair: Pair, stream: int = 1000, connection: int = 100_000) -> Pair:
    names = [type(engine).__name__ for engine in (pair.client, pair.server)]
    client, server = ("h2" if name == "H2Engine" else "nghttp2" for name in names)
    return Pair(
        client,
        server,
        client_options=EngineOptions("client", stream, connection),
        server_options=EngineOptions("server", stream, connection),
    )


def test_settings_and_their_acknowledgements_are_told(pair: Pair) -> None:
    for handler in (pair.at_client, pair.at_server):
        assert (handler.settings, handler.settings_answered) == (1, 1)
    assert pair.client.max_streams == 100
    assert pair.server.max_streams == UNLIMITED


def test_a_request_and_its_answer(pair: Pair) -> None:
    stream = pair.client.request(REQUEST, end_stream=False)
    pair.client.send(stream, b'{"a":', end_stream=False)
    pair.client.send(stream, b"1}", end_stream=True)
    pair.pump()
    assert pair.at_server.heads[stream] == REQUEST
    assert pair.at_server.bodies[stream] == b'{"a":1}'
    assert stream in pair.at_server.ended
    pair.server.respond(stream, OK, end_stream=False)
    pair.server.send(stream, b"data: 1\n\n")
    pair.pump()
    assert pair.at_client.heads[stream] == OK
    assert pair.at_client.bodies[stream] == b"data: 1\n\n"
    assert stream not in pair.at_client.ended
    pair.server.send(stream, b"data: [DONE]\n\n", end_stream=True)
    pair.pump()
    assert stream in pair.at_client.ended
    assert pair.at_client.resets == pair.at_server.resets == []


def test_heads_that_end_the_stream(pair: Pair) -> None:
    stream = pair.client.request([(b":method", b"GET"), *REQUEST[1:4]], end_stream=True)
    pair.pump()
    assert stream in pair.at_server.ended
    pair.server.respond(stream, [(b":status", b"204")], end_stream=True)
    pair.pump()
    assert stream in pair.at_client.ended


def test_what_the_window_does_not_take_waits_and_is_told_when_it_left(pair: Pair) -> None:
    pair = small_windows(pair)
    pair.at_client.consuming = False
    stream = pair.client.request(REQUEST, end_stream=True)
    pair.pump()
    pair.server.respond(stream, OK, end_stream=False)
    pair.server.send(stream, b"x" * 1500)
    pair.pump()
    assert len(pair.at_client.bodies[stream]) == 1000
    assert pair.server.waiting(stream) == pair.server.total_waiting == 500
    assert pair.at_server.writable == []
    pair.client.consumed(stream, 1000)
    pair.pump()
    assert len(pair.at_client.bodies[stream]) == 1500
    assert pair.server.waiting(stream) == pair.server.total_waiting == 0
    assert pair.at_server.writable == [stream]


def test_windows_open_only_by_what_was_consumed(pair: Pair) -> None:
    pair = small_windows(pair)
    pair.at_server.consuming = False
    stream = pair.client.request(REQUEST, end_stream=False)
    pair.client.send(stream, b"x" * 5000, end_stream=True)
    pair.pump()
    assert len(pair.at_server.bodies[stream]) == 1000
    pair.server.consumed(stream, 600)
    pair.pump()
    assert len(pair.at_server.bodies[stream]) == 1600
    pair.at_server.consuming = True
    pair.server.consumed(stream, 1000)
    pair.pump()
    assert len(pair.at_server.bodies[stream]) == 5000
    assert stream in pair.at_server.ended


def test_a_stream_that_is_gone_gives_the_connection_its_window_back(pair: Pair) -> None:
    pair = small_windows(pair, stream=65_535, connection=65_535)
    pair.at_server.consuming = False
    for _ in range(5):
        stream = pair.client.request(REQUEST, end_stream=False)
        pair.client.send(stream, b"x" * 60_000)
        pair.pump()
        assert len(pair.at_server.bodies[stream]) == 60_000
        pair.client.reset(stream, ErrorCode.CANCEL)
        pair.pump()
        pair.server.consumed(stream, 60_000)
        pair.pump()


def test_a_reset_reaches_the_peer_alone(pair: Pair) -> None:
    stream = pair.client.request(REQUEST, end_stream=False)
    other = pair.client.request(REQUEST, end_stream=True)
    pair.pump()
    pair.client.reset(stream, ErrorCode.CANCEL)
    pair.pump()
    assert pair.at_server.resets == [(stream, ErrorCode.CANCEL, True)]
    assert pair.at_client.resets == []
    pair.server.respond(stream, OK, end_stream=False)
    pair.server.send(stream, b"late")
    pair.server.consumed(stream, 10)
    pair.server.reset(other, ErrorCode.INTERNAL_ERROR)
    pair.pump()
    assert pair.at_client.resets == [(other, ErrorCode.INTERNAL_ERROR, True)]
    assert len(pair.at_server.resets) == 1
    assert pair.server.waiting(stream) == 0


def test_what_waits_of_a_stream_goes_when_it_is_reset(pair: Pair) -> None:
    pair = small_windows(pair)
    pair.at_client.consuming = False
    stream = pair.client.request(REQUEST, end_stream=True)
    pair.pump()
    pair.server.respond(stream, OK, end_stream=False)
    pair.server.send(stream, b"x" * 1500)
    pair.pump()
    pair.server.reset(stream, ErrorCode.INTERNAL_ERROR)
    pair.pump()
    assert pair.server.total_waiting == 0
    assert pair.at_client.resets == [(stream, ErrorCode.INTERNAL_ERROR, True)]


def test_a_limit_cuts_what_goes_out_and_streams_take_turns(pair: Pair) -> None:
    first = pair.client.request(REQUEST, end_stream=True)
    second = pair.client.request(REQUEST, end_stream=True)
    pair.pump()
    for stream in (first, second):
        pair.server.respond(stream, OK, end_stream=False)
        pair.server.send(stream, b"x" * 150_000)
    data = pair.server.outgoing(64 * 1024)
    assert 32 * 1024 <= len(data) <= 100 * 1024
    pair.client.receive(data)
    received = [len(pair.at_client.bodies[stream]) for stream in (first, second)]
    assert min(received) >= 16_384
    pair.pump()
    assert all(len(pair.at_client.bodies[stream]) == 150_000 for stream in (first, second))


def test_a_small_stream_overtakes_a_large_one(pair: Pair) -> None:
    large = pair.client.request(REQUEST, end_stream=True)
    small = pair.client.request(REQUEST, end_stream=True)
    pair.pump()
    for stream in (large, small):
        pair.server.respond(stream, OK, end_stream=False)
    pair.server.send(large, b"x" * 200_000)
    pair.client.receive(pair.server.outgoing(40_000))
    pair.server.send(small, b"token")
    pair.client.receive(pair.server.outgoing(40_000))
    assert pair.at_client.bodies[small] == b"token"


def test_data_of_one_read_is_told_in_one_call(pair: Pair) -> None:
    stream = pair.client.request(REQUEST, end_stream=False)
    pair.pump()
    pair.client.send(stream, b"x" * 60_000)
    pair.pump()
    assert pair.at_server.data_calls == 1
    assert len(pair.at_server.bodies[stream]) == 60_000


def test_pings_are_answered(pair: Pair) -> None:
    pair.client.ping()
    pair.server.ping()
    pair.pump()
    assert pair.at_client.pings_answered == pair.at_server.pings_answered == 1


def test_two_step_shutdown_lets_streams_end(pair: Pair) -> None:
    stream = pair.client.request(REQUEST, end_stream=True)
    pair.pump()
    pair.server.shutdown_notice()
    pair.pump()
    assert pair.at_client.goaways == [(UNLIMITED, ErrorCode.NO_ERROR)]
    pair.server.goaway()
    pair.pump()
    assert pair.at_client.goaways[1:] == [(stream, ErrorCode.NO_ERROR)]
    assert not pair.server.over
    pair.server.respond(stream, OK, end_stream=False)
    pair.server.send(stream, b"fin", end_stream=True)
    pair.pump()
    assert pair.at_client.bodies[stream] == b"fin"
    assert stream in pair.at_client.ended


def test_a_client_that_leaves_gets_its_streams_answered(pair: Pair) -> None:
    stream = pair.client.request(REQUEST, end_stream=True)
    pair.client.goaway()
    pair.pump()
    assert pair.at_server.goaways == [(0, ErrorCode.NO_ERROR)]
    pair.server.respond(stream, OK, end_stream=False)
    pair.server.send(stream, b"fin", end_stream=True)
    pair.pump()
    assert pair.at_client.bodies[stream] == b"fin"


def test_a_goaway_for_a_fault_is_the_last_word(pair: Pair) -> None:
    pair.client.request(REQUEST, end_stream=True)
    pair.pump()
    pair.server.goaway(ErrorCode.ENHANCE_YOUR_CALM)
    data = pair.server.outgoing()
    assert pair.server.over
    pair.client.receive(data)
    assert pair.at_client.goaways == [(1, ErrorCode.ENHANCE_YOUR_CALM)]


def test_nonsense_ends_the_connection_with_a_goaway(pair: Pair) -> None:
    pair.server.receive(b"\x00\x00\x08\x06\x00\x00\x00\x00\x01pingpong")  # PING on a stream
    data = pair.server.outgoing()
    assert pair.server.over
    pair.client.receive(data)
    assert pair.at_client.goaways == [(0, ErrorCode.PROTOCOL_ERROR)]
    pair.server.receive(b"more")
    assert pair.server.outgoing() == b""


def test_whether_something_is_pending(pair: Pair) -> None:
    client = pair.client
    assert not client.pending
    stream = client.request(REQUEST, end_stream=False)
    assert client.pending
    pair.pump()
    assert not client.pending
    client.send(stream, b"x" * 400_000)
    assert client.pending
    client.outgoing()  # the window is full
    for call in (client.ping, lambda: client.reset(stream, ErrorCode.CANCEL), client.goaway):
        call()
        assert client.pending
        pair.pump()
    client.receive(b"\0\0\0\0\0\0\0\0\0")  # DATA on stream 0
    assert client.pending or client.over


def test_a_connection_that_libnghttp2_gave_up_may_still_be_asked() -> None:
    """It raises whatever it is asked then."""
    pair = Pair("nghttp2", "nghttp2")
    pair.client.receive(b"\0\0\0\4\0\0\0\0\0" * 20_000)  # SETTINGS, each to be answered
    assert pair.client.pending
    pair.server.receive(pair.client.outgoing())
    pair.server.outgoing()
    assert pair.at_server.goaways[-1][1] == ErrorCode.ENHANCE_YOUR_CALM
    assert pair.client.over
    assert not pair.client.pending
    assert pair.client.outgoing() == b""
    assert pair.client.request(REQUEST, end_stream=True) == 0
