"""A client connection of HTTP/2, on both engines, in frames written by hand (RFC 9113)."""

from __future__ import annotations

import random

import hypothesis
import orjson
import pytest
from http2_edge import Http2Edge
from http2_frames import GET, POST, SETTINGS_ACK, data, ping, reset, settings, window_update
from http2_history import History
from hypothesis import given
from hypothesis import strategies as st

from core.errors import GatewayError
from core.http2 import frames
from core.http2.engine import ErrorCode
from core.http2.engines import EngineName
from core.http2.frames import frame
from proxy.config import ListenLimits, ListenTimeouts
from proxy.flow import NEVER
from proxy.http2.life import LONGEST_S, NOTICE_S, PING_AFTER_S, PING_WAIT_S

SSE = [(b"content-type", b"text/event-stream")]
TIMEOUTS = ListenTimeouts(
    head_s=10.0, body_s=60.0, body_min_rate=1024.0, keep_alive_s=75.0, write_idle_s=60.0
)


@pytest.fixture(params=["nghttp2", "h2"])
def engine(request: pytest.FixtureRequest) -> EngineName:
    name: EngineName = request.param
    return name


@pytest.fixture
def edge(engine: EngineName) -> Http2Edge:
    return Http2Edge(engine, timeouts=TIMEOUTS)


class Source:
    def __init__(self) -> None:
        self.told: list[str] = []

    def pause_reading(self) -> None:
        self.told.append("pause")

    def resume_reading(self) -> None:
        self.told.append("resume")


def error_of(body: bytes) -> str:
    document = orjson.loads(body)["error"]
    return str(document["code"])


# --- the beginning (section 3.4)


def test_our_settings_come_first_and_the_clients_are_acknowledged(engine: EngineName) -> None:
    edge = Http2Edge(engine, greeted=False).turn()
    first = edge.reader.frames[0]
    assert (first.kind, first.stream_id) == (frames.SETTINGS, 0)
    pairs = [first.payload[at : at + 6] for at in range(0, len(first.payload), 6)]
    announced = {int.from_bytes(p[:2], "big"): int.from_bytes(p[2:], "big") for p in pairs}
    assert announced[3] == 100
    assert announced[4] == 262_144
    assert announced[6] == 65_536
    edge.send(frames.PREFACE + settings())
    acknowledged = [one for one in edge.reader.of(frames.SETTINGS) if one.flags & frames.ACK]
    assert len(acknowledged) == 1


@pytest.mark.parametrize("said", [b"", frames.PREFACE, frames.PREFACE + settings()])
def test_a_client_that_does_not_get_going_is_given_up(engine: EngineName, said: bytes) -> None:
    edge = Http2Edge(engine, timeouts=TIMEOUTS, greeted=False)
    if said:
        edge.send(said)
    edge.wait(9.9)
    assert not edge.transport.over
    edge.wait(0.6)
    assert edge.transport.closed
    assert edge.reader.of(frames.GOAWAY)[-1].code == ErrorCode.SETTINGS_TIMEOUT


def test_what_is_no_preface_ends_the_connection(engine: EngineName) -> None:
    edge = Http2Edge(engine, greeted=False).send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 4)
    assert edge.transport.closed
    assert edge.exchanges == []


def test_a_header_block_must_become_whole(edge: Http2Edge) -> None:
    edge.send(edge.client.head(1, POST), data(1, b"{}", end=True))
    head = edge.client.head(3, GET, end=True)
    half = bytearray(head[: frames.HEADER_BYTES + 1])
    half[:3], half[4] = b"\0\0\x01", half[4] & ~frames.END_HEADERS
    edge.send(bytes(half))
    edge.wait(9.9)
    assert not edge.transport.over
    edge.wait(0.6)
    assert edge.transport.closed
    assert edge.reader.of(frames.GOAWAY)[-1].code == ErrorCode.ENHANCE_YOUR_CALM


def test_a_header_block_that_becomes_whole_in_time(edge: Http2Edge) -> None:
    head = edge.client.head(1, GET, end=True)
    first = bytearray(head[: frames.HEADER_BYTES + 1])
    first[:3], first[4] = b"\0\0\x01", first[4] & ~frames.END_HEADERS
    rest = frame(frames.CONTINUATION, frames.END_HEADERS, 1, head[frames.HEADER_BYTES + 1 :])
    edge.send(bytes(first))
    edge.wait(9.0)
    edge.send(rest)
    edge.wait(5.0)
    assert not edge.transport.over
    assert len(edge.exchanges) == 1


# --- requests and answers (section 8)


def test_a_request_and_its_streamed_answer(edge: Http2Edge) -> None:
    edge.send(edge.client.head(1, [*POST, (b"content-length", b"8")]))
    assert edge.exchanges == []
    edge.send(data(1, b'{"a"'), data(1, b": 1}", end=True))
    [got] = edge.requests
    assert (got.method, got.path, got.version) == ("POST", "/v1/chat/completions", "2")
    assert (got.body, got.peer) == (b'{"a": 1}', "192.0.2.1")
    [exchange] = edge.exchanges
    exchange.start(200, SSE, None)
    assert edge.turn().answers.get(1) is None, "the head travels with the first bytes"
    exchange.write(b"data: 1\n\n")
    edge.turn()
    assert edge.answers[1].status == 200
    assert edge.answers[1].headers[b"content-type"] == b"text/event-stream"
    assert edge.answers[1].headers[b"date"] == b"Mon, 30 Nov 2026 12:00:00 GMT"
    assert edge.answers[1].body == b"data: 1\n\n"
    exchange.write(b"data: 2\n\n")
    exchange.finish(b"data: [DONE]\n\n")
    edge.turn()
    assert edge.answers[1].body == b"data: 1\n\ndata: 2\n\ndata: [DONE]\n\n"
    assert edge.answers[1].complete
    assert edge.answers[1].reset is None
    assert exchange.bytes_sent == len(edge.answers[1].body)


def test_what_is_said_in_one_pass_of_the_loop_is_one_write(edge: Http2Edge) -> None:
    writes: list[bytes] = []
    edge.transport.write = writes.append  # type: ignore[method-assign]
    edge.send(*(edge.client.request(sid, GET) for sid in (1, 3, 5)))
    for exchange in edge.exchanges:
        exchange.start(200, SSE, None)
    del writes[:]
    for exchange in edge.exchanges:
        exchange.write(b"data: 1\n\n")
    edge.turn()
    assert len(writes) == 1


def test_head_and_204_have_no_body(edge: Http2Edge) -> None:
    head = [(b":method", b"HEAD"), *GET[1:]]
    edge.send(edge.client.request(1, head), edge.client.request(3, GET))
    edge.answer(0, b"not sent")
    assert edge.answers[1].headers[b"content-length"] == b"8"
    assert edge.answers[1].body == b""
    assert edge.answers[1].complete
    edge.exchanges[1].start(204, [], 0)
    edge.exchanges[1].finish()
    edge.turn()
    assert edge.answers[3].status == 204
    assert b"content-length" not in edge.answers[3].headers
    assert edge.answers[3].complete


def test_an_answer_without_writes_has_its_body_at_once(edge: Http2Edge) -> None:
    edge.send(edge.client.request(1, GET))
    edge.exchanges[0].start(200, [], 2)
    edge.exchanges[0].finish(b"ok")
    assert edge.turn().answers[1].body == b"ok"
    assert edge.answers[1].complete


def test_trailers_end_a_request_and_are_dropped(edge: Http2Edge) -> None:
    edge.send(edge.client.head(1, POST), data(1, b"{}"))
    edge.send(edge.client.head(1, [(b"x-checksum", b"1")], end=True))
    [got] = edge.requests
    assert got.body == b"{}"
    assert got.header(b"x-checksum") is None


def test_an_abort_resets_the_stream_after_what_was_written(edge: Http2Edge) -> None:
    edge.send(edge.client.request(1, GET), edge.client.request(3, GET))
    first, second = edge.exchanges
    for exchange in (first, second):
        exchange.start(200, SSE, None)
        exchange.write(b"data: 1\n\n")
    first.write(b'data: {"error":{}}\n\n')
    first.abort()
    edge.turn()
    assert edge.answers[1].body.endswith(b'data: {"error":{}}\n\n')
    assert edge.answers[1].reset == ErrorCode.INTERNAL_ERROR
    assert not edge.answers[1].complete
    second.finish(b"data: [DONE]\n\n")
    edge.turn()
    assert edge.answers[3].complete
    assert not edge.transport.over


def test_an_abort_before_the_head_is_a_reset(edge: Http2Edge) -> None:
    edge.send(edge.client.request(1, GET))
    edge.exchanges[0].start(200, SSE, None)
    edge.exchanges[0].abort()
    assert edge.turn().answers[1].reset == ErrorCode.INTERNAL_ERROR


def test_nothing_is_kept_of_a_stream_that_ended(edge: Http2Edge) -> None:
    for stream in range(1, 41, 2):
        edge.send(edge.client.request(stream, POST, b"{}"))
        edge.answer(-1)
        assert edge.answers[stream].complete
    assert edge.connection.idle
    assert edge.listener.admission.buffered == 0


@given(
    name=st.sampled_from(["nghttp2", "h2"]),
    cuts=st.lists(st.integers(min_value=1, max_value=600), min_size=1, max_size=8),
)
def test_how_the_bytes_are_cut_makes_no_difference(name: EngineName, cuts: list[int]) -> None:
    edge = Http2Edge(name, greeted=False)
    said = b"".join(
        (
            frames.PREFACE + settings() + SETTINGS_ACK,
            edge.client.head(1, POST) + data(1, b"a" * 700),
            edge.client.request(3, [*GET, (b"x", b"y" * 500)]),
            ping() + data(1, b"b" * 300, end=True),
            edge.client.head(5, POST) + data(5, b"c") + reset(5),
        )
    )
    at = turn = 0
    while at < len(said):
        edge.send(said[at : at + cuts[turn % len(cuts)]])
        at, turn = at + cuts[turn % len(cuts)], turn + 1
    assert [(r.method, len(r.body)) for r in edge.requests] == [("GET", 0), ("POST", 1000)]
    edge.answer(0).answer(1)
    assert edge.answers[1].complete
    assert edge.answers[3].complete
    assert edge.connection.idle


# --- what is refused


def test_what_the_gate_refuses_is_answered_and_the_connection_goes_on(edge: Http2Edge) -> None:
    edge.send(edge.client.request(1, [(b":method", b"PUT"), *POST[1:]]))
    assert edge.exchanges == []
    assert edge.answers[1].status == 405
    assert edge.answers[1].complete
    assert len(edge.listener.refusals) == 1
    edge.send(edge.client.request(3, GET)).answer(0)
    assert edge.answers[3].complete


@pytest.mark.parametrize(
    "wrong",
    [
        (b"connection", b"close"),
        (b"transfer-encoding", b"chunked"),
        (b"upgrade", b"h2c"),
        (b"te", b"gzip"),
        (b":path", b"/again"),
        (b":late", b"1"),
    ],
)
def test_a_malformed_request_is_never_begun(edge: Http2Edge, wrong: tuple[bytes, bytes]) -> None:
    """Section 8.1.1: libnghttp2 resets the stream, h2 ends the connection; both may."""
    edge.send(edge.client.request(1, [*GET, wrong]))
    assert edge.exchanges == []
    answer = edge.answers.get(1)
    reset = answer is not None and answer.reset == ErrorCode.PROTOCOL_ERROR
    assert reset or edge.transport.closed


def test_a_large_header_block_is_refused_politely(engine: EngineName) -> None:
    edge = Http2Edge(engine, limits=ListenLimits(max_header_bytes=10_000))
    edge.send(edge.client.request(1, [*GET, (b"a", b"x" * 12_000)]))
    assert edge.answers[1].status == 431
    edge.send(edge.client.request(3, [*GET, *((b"a", b"x"),) * 101]))
    assert edge.answers[3].status == 431
    edge.send(edge.client.request(5, GET)).answer(0)
    assert edge.answers[5].complete


def test_a_body_that_is_too_large_is_refused(engine: EngineName) -> None:
    edge = Http2Edge(engine, limits=ListenLimits(max_body_bytes=10_000))
    edge.send(edge.client.head(1, [*POST, (b"content-length", b"10001")]))
    edge.send(edge.client.head(3, POST), data(3, b"x" * 9000), data(3, b"x" * 1001))
    for stream in (1, 3):
        assert edge.answers[stream].status == 413
        assert error_of(edge.answers[stream].body) == "payload_too_large"
        assert edge.answers[stream].complete
    assert edge.exchanges == []
    assert edge.listener.admission.buffered == 0
    edge.send(edge.client.request(5, GET)).answer(0)
    assert edge.answers[5].complete


def test_the_rest_of_what_was_refused_is_read_for_a_while(engine: EngineName) -> None:
    """A client that sends all before it reads the answer must be able to."""
    edge = Http2Edge(engine, limits=ListenLimits(max_body_bytes=10_000))
    for stream in (1, 3, 5, 7):
        edge.send(edge.client.head(stream, POST), data(stream, b"x" * 10_001))
    edge.send(data(1, b"x" * 9000), data(1, b"x" * 900, end=True))
    edge.send(data(3, b"x" * 9000), edge.client.head(3, [(b"a", b"b")], end=True))
    edge.send(*(data(5, b"x" * 10_000) for _ in range(16)))
    assert [edge.answers[stream].reset for stream in (1, 3, 5, 7)] == [None] * 4
    edge.send(data(5, b"x"))
    assert edge.answers[5].reset == ErrorCode.NO_ERROR
    edge.wait(4.0)
    assert edge.answers[7].reset is None
    edge.wait(1.5)
    assert edge.answers[7].reset == ErrorCode.NO_ERROR
    assert edge.connection.idle
    assert edge.reader.of(frames.GOAWAY), "what was cut off is missing from the window"


def test_so_many_bodies_at_a_time_are_enough(engine: EngineName) -> None:
    edge = Http2Edge(engine, limits=ListenLimits(max_body_bytes=10_000))
    for stream in range(1, 11, 2):
        edge.send(edge.client.head(stream, POST), data(stream, b"x" * 9000))
    assert edge.answers[9].reset == ErrorCode.REFUSED_STREAM
    assert edge.listener.admission.buffered == 4 * 9000
    edge.send(data(1, b"x", end=True))
    assert len(edge.requests[0].body) == 9001


def test_a_body_that_is_too_slow_costs_its_stream_alone(edge: Http2Edge) -> None:
    edge.send(edge.client.head(1, POST), data(1, b"x" * 100))
    edge.send(edge.client.head(3, POST), data(3, b"x" * 16_000))
    edge.wait(6.0)
    assert edge.answers[1].status == 408
    assert edge.answers[1].complete
    edge.send(data(3, b"", end=True))
    assert [len(request.body) for request in edge.requests] == [16_000]


def test_a_body_has_a_last_moment(edge: Http2Edge) -> None:
    edge.send(edge.client.head(1, POST))
    for _ in range(60):
        edge.send(data(1, b"x" * 2000)).wait(1.0)
    edge.wait(1.0)
    assert edge.answers[1].status == 408


def test_a_connection_that_may_not_ask_for_a_host_is_told_so(edge: Http2Edge) -> None:
    class Misdirected(GatewayError):
        status = 421

    def admit(request: object) -> None:
        raise Misdirected("no")

    edge.connection.admit = admit  # type: ignore[method-assign]
    edge.send(edge.client.request(1, GET))
    assert edge.answers[1].status == 421
    assert edge.exchanges == []


# --- streams that end early


def test_a_reset_cancels_its_exchange_and_no_other(edge: Http2Edge) -> None:
    edge.send(edge.client.request(1, GET), edge.client.request(3, GET), reset(1))
    assert [exchange.gone for exchange in edge.exchanges] == [True, False]
    assert [edge.task(0).cancelled, edge.task(1).cancelled] == [True, False]
    gone = edge.exchanges[0]
    gone.start(200, SSE, None)
    gone.write(b"late")
    gone.abort()
    edge.turn()
    assert 1 not in edge.answers
    edge.answer(1)
    assert edge.answers[3].complete


def test_a_reset_drops_a_body_that_was_arriving(edge: Http2Edge) -> None:
    edge.send(edge.client.head(1, POST), data(1, b"x" * 1000), reset(1))
    assert edge.listener.admission.buffered == 0
    assert edge.exchanges == []
    assert edge.connection.idle


def test_a_lost_connection_cancels_all_its_exchanges(edge: Http2Edge) -> None:
    edge.send(edge.client.request(1, GET), edge.client.request(3, GET))
    edge.send(edge.client.head(5, POST), data(5, b"x" * 1000))
    edge.lose()
    assert all(exchange.gone for exchange in edge.exchanges)
    assert edge.task(0).cancelled
    assert edge.task(1).cancelled
    assert edge.listener.open == 0
    assert edge.listener.admission.buffered == 0
    assert edge.connection.deadline_at == NEVER


def test_streams_above_the_limit_are_refused(engine: EngineName) -> None:
    edge = Http2Edge(engine, limits=ListenLimits(max_streams=3))
    edge.send(*(edge.client.request(stream, GET) for stream in (1, 3, 5, 7)))
    assert len(edge.exchanges) == 3
    assert edge.answers[7].reset == ErrorCode.REFUSED_STREAM
    edge.answer(0)
    edge.send(edge.client.request(9, GET))
    assert len(edge.exchanges) == 4


# --- flow control (section 5.2)


def streaming(edge: Http2Edge, stream: int, at: int = -1) -> Source:
    """Begin an answer on `stream`; what feeds it."""
    edge.send(edge.client.request(stream, GET))
    exchange, source = edge.exchanges[at], Source()
    exchange.source = source
    exchange.start(200, SSE, None)
    exchange.write(b"x")
    edge.turn()
    return source


def test_a_shut_window_holds_up_its_stream_alone(engine: EngineName) -> None:
    edge = Http2Edge(engine, timeouts=TIMEOUTS, client_settings=settings(_4=100))
    slow, quick = streaming(edge, 1), streaming(edge, 3)
    edge.exchanges[0].write(b"y" * 200)
    edge.exchanges[1].write(b"z" * 50)
    edge.turn()
    assert len(edge.answers[1].body) == 100
    assert slow.told == ["pause"]
    assert edge.answers[3].body == b"x" + b"z" * 50
    assert quick.told == []
    edge.send(window_update(1, 1000))
    assert edge.answers[1].body == b"x" + b"y" * 200
    assert slow.told == ["pause", "resume"]


def test_a_window_that_never_opens_costs_its_stream_alone(engine: EngineName) -> None:
    edge = Http2Edge(engine, timeouts=TIMEOUTS, client_settings=settings(_4=100))
    streaming(edge, 1)
    streaming(edge, 3)
    edge.exchanges[0].write(b"y" * 200)
    edge.turn()
    for _ in range(61):
        edge.wait(1.0).send(ping())
    assert edge.answers[1].reset == ErrorCode.CANCEL
    assert edge.exchanges[0].gone
    assert edge.task(0).cancelled
    assert not edge.exchanges[1].gone
    assert edge.answers[3].reset is None
    assert not edge.transport.over


def test_a_window_that_opens_slowly_is_waited_for(engine: EngineName) -> None:
    edge = Http2Edge(engine, timeouts=TIMEOUTS, client_settings=settings(_4=100))
    streaming(edge, 1)
    edge.exchanges[0].write(b"y" * 200)
    edge.turn()
    for _ in range(4):
        edge.wait(25.0).send(window_update(1, 10)).wait(25.0).send(ping())
    assert edge.answers[1].reset is None
    assert len(edge.answers[1].body) == 140


def test_an_answer_that_ended_waits_for_its_window_too(engine: EngineName) -> None:
    edge = Http2Edge(engine, timeouts=TIMEOUTS, client_settings=settings(_4=100))
    edge.send(edge.client.request(1, GET)).answer(0, b"y" * 200)
    assert not edge.connection.idle
    edge.send(window_update(1, 1000))
    assert edge.answers[1].complete
    assert edge.connection.idle


def test_an_abort_waits_for_what_was_written_before(engine: EngineName) -> None:
    edge = Http2Edge(engine, timeouts=TIMEOUTS, client_settings=settings(_4=100))
    streaming(edge, 1)
    edge.exchanges[0].write(b"y" * 200)
    edge.exchanges[0].abort()
    assert edge.turn().answers[1].reset is None
    edge.send(window_update(1, 1000))
    assert edge.answers[1].body == b"x" + b"y" * 200
    assert edge.answers[1].reset == ErrorCode.INTERNAL_ERROR


def test_a_full_transport_holds_up_all_streams(edge: Http2Edge) -> None:
    first, second = streaming(edge, 1), streaming(edge, 3)
    edge.connection.pause_writing()
    assert first.told == second.told == ["pause"]
    written = len(edge.transport.written)
    edge.exchanges[0].write(b"y")
    edge.send(ping())
    assert len(edge.transport.written) == written
    assert first.told == ["pause", "pause"]
    edge.connection.resume_writing()
    edge.turn()
    assert edge.answers[1].body == b"xy"
    assert first.told[-1] == second.told[-1] == "resume"


def test_a_client_that_reads_nothing_is_cut_and_one_that_reads_a_little_is_not(
    edge: Http2Edge,
) -> None:
    streaming(edge, 1)
    edge.connection.pause_writing()
    for _ in range(5):
        edge.transport.buffered -= 1
        edge.wait(60.5)
        assert not edge.transport.aborted
    edge.wait(60.5)
    assert edge.transport.aborted
    assert edge.exchanges[0].gone


def test_a_large_answer_goes_out_in_parts_and_a_small_one_between(edge: Http2Edge) -> None:
    edge.send(window_update(0, 2**30), edge.client.request(1, GET), edge.client.request(3, GET))
    edge.send(window_update(1, 2**30))
    large, small = edge.exchanges
    for exchange in (large, small):
        exchange.start(200, SSE, None)
        exchange.write(b"x")
    edge.turn()
    large.write(b"y" * 1_000_000)
    calls = edge.listener.loop.calls
    calls.pop(0)()
    small.write(b"z")
    calls.pop(0)()
    edge.reader.feed(edge.transport.written[edge._read :])
    edge._read = len(edge.transport.written)
    assert edge.answers[3].body == b"xz"
    assert len(edge.answers[1].body) <= 150_000
    edge.turn()
    assert len(edge.answers[1].body) == 1_000_001


def test_uploads_are_granted_as_much_as_they_send(edge: Http2Edge) -> None:
    edge.send(edge.client.head(1, POST))
    granted = 262_144
    for _ in range(100):
        edge.send(data(1, b"x" * 16_384))
        granted -= 16_384
        assert granted >= 0
        updates = edge.reader.of(frames.WINDOW_UPDATE)
        edge.reader.frames.clear()
        granted += sum(int.from_bytes(one.payload, "big") for one in updates if one.stream_id == 1)
    edge.send(data(1, b"", end=True))
    assert len(edge.requests[0].body) == 1_638_400


def test_large_reads_take_turns(edge: Http2Edge) -> None:
    edge.send(edge.client.head(1, POST) + b"".join(data(1, b"x" * 16_000) for _ in range(2)))
    assert edge.listener.read_turns.taken == 0
    edge.send(b"".join(data(1, b"x" * 16_384) for _ in range(2)))
    assert edge.listener.read_turns.taken == 1


# --- the end


def test_a_connection_drains_in_two_steps(edge: Http2Edge) -> None:
    streaming(edge, 1)
    edge.listener.keep_alive = False
    edge.connection.shut_idle()
    edge.turn()
    [notice] = edge.reader.of(frames.GOAWAY)
    assert (notice.payload[:4], notice.code) == (b"\x7f\xff\xff\xff", ErrorCode.NO_ERROR)
    edge.send(edge.client.request(3, GET)).answer(1)  # was under way
    assert edge.answers[3].complete
    [asked] = [one for one in edge.reader.of(frames.PING) if not one.flags & frames.ACK]
    edge.send(ping(asked.payload, ack=True))
    last = edge.reader.of(frames.GOAWAY)[-1]
    assert (int.from_bytes(last.payload[:4], "big"), last.code) == (3, ErrorCode.NO_ERROR)
    edge.send(edge.client.request(5, GET))
    assert len(edge.exchanges) == 2
    assert not edge.transport.over
    edge.exchanges[0].finish(b"data: [DONE]\n\n")
    edge.turn()
    assert edge.answers[1].complete
    assert edge.transport.closed


def test_a_fragile_client_is_told_of_the_end_when_it_has_no_streams(edge: Http2Edge) -> None:
    """httpx gives up all streams at a GOAWAY."""
    edge.send(edge.client.request(1, [*GET, (b"user-agent", b"OpenAI/Python 3.57.0")]))
    edge.connection.shut_idle()
    edge.turn()
    edge.send(edge.client.request(3, GET)).answer(1)
    assert edge.reader.of(frames.GOAWAY) == edge.reader.of(frames.PING) == []
    edge.answer(0)
    assert [one.code for one in edge.reader.of(frames.GOAWAY)] == [0]
    edge.wait(NOTICE_S + 0.5)
    assert edge.transport.closed


def test_an_idle_connection_drains_at_once_or_after_a_moment(edge: Http2Edge) -> None:
    edge.connection.shut_idle()
    assert not edge.transport.over
    edge.wait(NOTICE_S + 0.5)
    assert edge.transport.closed
    other = Http2Edge("nghttp2")
    other.connection.shut_idle()
    other.connection.shut_idle()
    assert other.transport.closed


def test_a_closing_connection_has_a_last_moment(edge: Http2Edge) -> None:
    edge.connection.shut_idle()
    edge.connection.shut_idle()
    assert edge.transport.closed
    edge.wait(TIMEOUTS.write_idle_s - 1)
    assert not edge.transport.aborted, "the last answer may still be on its way"
    edge.wait(2.0)
    assert edge.transport.aborted


def test_a_client_that_broke_a_rule_has_a_short_one(edge: Http2Edge) -> None:
    edge.send(ping() * 1000)
    assert edge.transport.closed
    edge.wait(1.5)
    assert edge.transport.aborted


def test_an_idle_connection_ends(edge: Http2Edge) -> None:
    edge.send(edge.client.request(1, GET)).answer(0)
    edge.wait(74.0)
    assert edge.reader.of(frames.GOAWAY) == []
    edge.wait(2.0 + NOTICE_S)
    assert len(edge.reader.of(frames.GOAWAY)) == 2
    assert edge.transport.closed


def test_pings_do_not_keep_an_idle_connection(edge: Http2Edge) -> None:
    for _ in range(80):
        edge.wait(1.0)
        if edge.transport.over:
            break
        edge.send(ping())
    assert edge.transport.closed


def test_a_client_that_is_gone_without_a_word_is_found_out(edge: Http2Edge) -> None:
    streaming(edge, 1)
    edge.wait(PING_AFTER_S + 0.5)
    assert len(edge.reader.of(frames.PING)) == 1
    edge.wait(PING_WAIT_S)
    assert edge.transport.aborted
    assert edge.exchanges[0].gone


def test_a_client_that_answers_is_left_alone(edge: Http2Edge) -> None:
    streaming(edge, 1)
    for _ in range(10):
        edge.wait(PING_AFTER_S + 0.5).send(ping(bytes(8), ack=True))
    assert not edge.transport.over


def test_old_connections_retire(edge: Http2Edge) -> None:
    streaming(edge, 1)
    for _ in range(int(LONGEST_S / 20)):
        edge.wait(20.0).send(ping())
    assert len(edge.reader.of(frames.GOAWAY)) == 2
    assert not edge.transport.over
    edge.exchanges[0].finish()
    edge.turn()
    assert edge.transport.closed


def test_connections_that_had_many_streams_retire(
    edge: Http2Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.http2.life.MOST_STREAMS", 50)
    for number in range(50):
        assert edge.reader.of(frames.GOAWAY) == []
        edge.send(edge.client.request(2 * number + 1, GET)).answer(-1)
    assert len(edge.reader.of(frames.GOAWAY)) == 1
    edge.wait(NOTICE_S + 0.5)
    assert edge.transport.closed


def test_a_client_that_says_goodbye_gets_its_answers(edge: Http2Edge) -> None:
    edge.send(edge.client.request(1, GET), frame(frames.GOAWAY, 0, 0, bytes(8)))
    assert not edge.transport.over
    edge.answer(0)
    assert edge.answers[1].complete
    assert edge.transport.closed


def test_a_flood_ends_the_connection_and_all_that_it_asked_for(edge: Http2Edge) -> None:
    edge.send(edge.client.request(1, GET), ping() * 1000)
    assert edge.reader.of(frames.GOAWAY)[-1].code == ErrorCode.ENHANCE_YOUR_CALM
    assert edge.transport.closed
    assert edge.exchanges[0].gone
    assert edge.listener.metrics.value("floods_total", "pings") == 1
    edge.connection.data_received(edge.client.request(3, GET))
    assert len(edge.exchanges) == 1


def test_resets_that_we_are_made_to_send_count_like_the_clients_own(edge: Http2Edge) -> None:
    for number in range(1000):
        if edge.transport.over:
            break
        stream = 2 * number + 1
        edge.send(edge.client.request(stream, GET) + window_update(stream, 2**31 - 1))
    assert edge.transport.closed
    assert len(edge.exchanges) <= 200
    assert all(exchange.gone for exchange in edge.exchanges)


def test_malformed_requests_count_like_resets(edge: Http2Edge) -> None:
    for stream in range(1, 2001, 2):
        if edge.transport.over:
            break
        edge.send(
            edge.client.head(stream, [*POST, (b"content-length", b"5")]),
            data(stream, b"x", end=True),
        )
    assert edge.transport.closed
    assert edge.exchanges == []


# --- whatever happens


@hypothesis.settings(max_examples=150)
@given(
    engine=st.sampled_from(["nghttp2", "h2"]), seed=st.integers(0, 2**32), steps=st.integers(1, 30)
)
def test_any_history_ends_without_a_fault_or_a_trace(
    engine: EngineName, seed: int, steps: int
) -> None:
    history = History(engine, random.Random(seed))
    history.run(steps)
    edge = history.edge
    assert edge.connection.idle
    assert edge.listener.open == 0
    assert edge.listener.admission.buffered == 0
    for exchange in edge.exchanges:
        assert exchange.gone or exchange.started
