from __future__ import annotations

from itertools import pairwise

import orjson
import pytest
from edge import Edge, answer, replies
from hostile import AMBIGUOUS_BODIES, REFUSED, SMUGGLED, chunked, request
from hypothesis import given
from hypothesis import strategies as st

from core.errors import MisdirectedRequest
from core.exchange import Request
from proxy.config import ListenLimits, ListenTimeouts
from proxy.flow import NEVER
from proxy.listen.connection import FRESH_S

GET = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n"


def post(body: bytes, *fields: bytes) -> bytes:
    return request(b"Content-Length: %d" % len(body), *fields, body=body)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """`data` in pieces, cut at `places` (each taken modulo its length)."""
    edges = sorted({0, len(data), *(place % len(data) for place in places)})
    return [data[start:end] for start, end in pairwise(edges)]


PLACES = st.lists(st.integers(min_value=0, max_value=10_000), max_size=12)


class Source:
    def __init__(self) -> None:
        self.told: list[str] = []

    def pause_reading(self) -> None:
        self.told.append("pause")

    def resume_reading(self) -> None:
        self.told.append("resume")


# --- what is refused


def assert_refused(edge: Edge, status: int) -> None:
    assert edge.requests == []
    [reply] = edge.replies
    assert reply.status == status
    assert reply.headers[b"connection"] == b"close"
    error = orjson.loads(reply.body)["error"]
    assert error["message"]
    assert error["request_id"].encode() == reply.headers[b"x-request-id"]
    assert len(edge.listener.refusals) == 1
    assert edge.transport.half_closed
    edge.wait(1.1)
    assert edge.transport.aborted


@pytest.mark.parametrize(("data", "status"), REFUSED.values(), ids=REFUSED.keys())
def test_a_doubtful_head_is_refused(data: bytes, status: int) -> None:
    edge = Edge().talk(data + SMUGGLED)
    assert_refused(edge, status)
    edge.talk(SMUGGLED)
    assert edge.requests == []


@given(name=st.sampled_from(sorted(REFUSED)), places=PLACES)
def test_a_doubtful_head_is_refused_however_it_arrives(name: str, places: list[int]) -> None:
    data, status = REFUSED[name]
    edge = Edge().talk(*cut(data + SMUGGLED, places))
    assert_refused(edge, status)


@pytest.mark.parametrize("body", AMBIGUOUS_BODIES.values(), ids=AMBIGUOUS_BODIES.keys())
def test_a_doubtful_chunked_body_is_refused(body: bytes) -> None:
    assert_refused(Edge().talk(chunked(body=body + SMUGGLED)), 400)
    pieces = [bytes([byte]) for byte in chunked(body=body + SMUGGLED)]
    assert_refused(Edge().talk(*pieces), 400)


def test_a_refusal_ends_a_pipeline() -> None:
    edge = Edge().talk(GET + REFUSED["CL and TE"][0] + GET)
    assert [r.path for r in edge.requests] == ["/a"]
    assert [reply.status for reply in edge.replies] == [200, 400]
    assert edge.replies[-1].headers[b"connection"] == b"close"


def test_what_names_no_method_we_have_says_which_we_have() -> None:
    [reply] = Edge().talk(request(line=b"DELETE /a HTTP/1.1")).replies
    assert reply.headers[b"allow"] == b"GET, HEAD, OPTIONS, POST"


# --- what is served


def test_one_request() -> None:
    edge = Edge().talk(
        b"POST /v1/x?a=b&c HTTP/1.1\r\nHost: a:80\r\nX-Empty:\r\nX-Space: b \t\r\n"
        b"Authorization:\t Bearer t \r\nContent-Length: 2\r\n\r\n{}"
    )
    [got] = edge.requests
    assert (got.method, got.path, got.query, got.version) == ("POST", "/v1/x", "a=b&c", "1.1")
    assert got.headers == [
        (b"host", b"a:80"),
        (b"x-empty", b""),
        (b"x-space", b"b"),
        (b"authorization", b"Bearer t"),
    ]
    assert (got.body, got.peer) == (b"{}", "192.0.2.1")
    [reply] = edge.replies
    assert (reply.status, reply.body) == (200, b"/v1/x")
    assert b"connection" not in reply.headers
    assert b"date" in reply.headers
    assert not edge.transport.over


@pytest.mark.parametrize("host", [b"a", b"a.example:8443", b"127.0.0.1", b"[::1]:80", b"a_b"])
def test_hosts_that_are_hosts(host: bytes) -> None:
    assert len(Edge().talk(b"GET / HTTP/1.1\r\nHost: " + host + b"\r\n\r\n").requests) == 1


def test_pipelined_requests_are_answered_one_after_the_other() -> None:
    edge = Edge().send(post(b"one") + GET + post(b"two") + GET[:20])
    assert len(edge.requests) == 1
    edge.settle()
    assert [r.body for r in edge.requests] == [b"one", b"", b"two"]
    assert [reply.body for reply in edge.replies] == [b"/v1/x", b"/a", b"/v1/x"]
    edge.talk(GET[20:])
    assert len(edge.requests) == 4


def test_instants_of_a_request() -> None:
    edge = Edge().send(post(b"abc")[:10])
    edge.listener.clock += 2
    edge.send(post(b"abc")[10:-1])
    edge.listener.clock += 3
    edge.send(post(b"abc")[-1:])
    assert (edge.requests[0].received_at, edge.requests[0].complete_at) == (100.0, 105.0)
    edge.listener.clock = 200.0
    edge.settle().talk(GET)
    assert edge.requests[1].received_at == 200.0


def test_empty_lines_before_a_request_are_skipped() -> None:
    edge = Edge().talk(b"\r\n" * 100_000, b"\r", b"\n" + GET, b"\r\n", GET)
    assert len(edge.requests) == 2


BODIES = st.binary(max_size=60)


@st.composite
def chunks(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A body and one of its chunked forms."""
    parts = draw(st.lists(st.binary(min_size=1, max_size=30), max_size=5))
    extension = draw(st.sampled_from([b"", b";a", b";a=b", b';a="b c"']))
    size = draw(st.sampled_from([b"%x", b"%X", b"0%x"]))
    trailer = draw(st.sampled_from([b"", b"X-Trailer: a\r\n", b"Host: evil\r\nY: b\r\n"]))
    encoded = b"".join(size % len(p) + extension + b"\r\n" + p + b"\r\n" for p in parts)
    return b"".join(parts), encoded + b"0\r\n" + trailer + b"\r\n"


@given(bodies=st.lists(BODIES, min_size=1, max_size=4), last=chunks(), places=PLACES)
def test_any_split_gives_the_same_requests(
    bodies: list[bytes], last: tuple[bytes, bytes], places: list[int]
) -> None:
    data = b"".join(post(body) for body in bodies) + chunked(b"X: 1", body=last[1])
    edge = Edge().talk(*cut(data, places))
    assert [r.body for r in edge.requests] == [*bodies, last[0]]
    assert [r.path for r in edge.requests] == ["/v1/x"] * (len(bodies) + 1)
    assert edge.requests[-1].headers == [
        (b"host", b"a"),
        (b"transfer-encoding", b"chunked"),
        (b"x", b"1"),
    ]
    assert [reply.status for reply in edge.replies] == [200] * (len(bodies) + 1)
    assert not edge.transport.over


@given(body=chunks(), behind=st.sampled_from([GET, b"garbage", SMUGGLED * 2]), places=PLACES)
def test_what_follows_a_chunked_body_does_no_harm_to_it(
    body: tuple[bytes, bytes], behind: bytes, places: list[int]
) -> None:
    edge = Edge().talk(*cut(chunked(body=body[1]) + behind, places))
    assert edge.requests[0].body == body[0]
    assert [r.path for r in edge.requests[1:]] in ([], ["/a"], ["/smuggled"], ["/smuggled"] * 2)
    assert edge.replies[0].status == 200
    if len(edge.requests) == 1 and behind is GET:
        assert edge.transport.closed


def test_an_upgrade_that_is_offered_is_not_taken_up() -> None:
    offer = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: a")
    edge = Edge().talk(request(*offer, line=b"GET /a HTTP/1.1"), post(b"abc", *offer), GET)
    assert [r.body for r in edge.requests] == [b"", b"abc", b""]
    assert [reply.status for reply in edge.replies] == [200] * 3


# --- bounds


def test_a_head_that_is_too_large() -> None:
    limits = ListenLimits(max_header_bytes=1024)
    fits = request(b"X: ", line=b"GET / HTTP/1.1")
    fits = fits.replace(b"X: ", b"X: " + b"a" * (1024 - len(fits)))
    assert len(Edge(limits=limits).talk(fits).requests) == 1
    assert_refused(Edge(limits=limits).talk(fits.replace(b"X: ", b"X: a")), 431)
    assert_refused(Edge(limits=limits).talk(b"GET /" + b"a" * 2000), 431)
    assert_refused(Edge(limits=limits).talk(*[b"GET / HTTP/1.1\r\n", *[b"X: a\r\n"] * 300]), 431)


def test_too_many_fields() -> None:
    limits = ListenLimits(max_headers=10)
    assert len(Edge(limits=limits).talk(request(*[b"X: a"] * 9)).requests) == 1
    assert_refused(Edge(limits=limits).talk(request(*[b"X: a"] * 10)), 431)


def test_a_body_that_is_too_large_is_refused_from_its_length() -> None:
    limits = ListenLimits(max_body_bytes=1024)
    assert len(Edge(limits=limits).talk(post(b"a" * 1024)).requests) == 1
    edge = Edge(limits=limits).talk(request(b"Content-Length: 1025", b"Expect: 100-continue"))
    assert_refused(edge, 413)


def test_a_chunked_body_that_is_too_large_is_refused_as_it_comes() -> None:
    limits = ListenLimits(max_body_bytes=1024)
    piece = b"200\r\n" + b"a" * 512 + b"\r\n"
    assert len(Edge(limits=limits).talk(chunked(body=piece * 2 + b"0\r\n\r\n")).requests) == 1
    edge = Edge(limits=limits).talk(chunked(body=b""), piece, piece)
    assert edge.replies == []
    assert_refused(edge.talk(b"1\r\na\r\n"), 413)
    assert_refused(Edge(limits=limits).talk(chunked(body=b"ffffffffffffffff\r\n" + piece * 3)), 413)


def test_few_small_chunks_pass_and_many_do_not() -> None:
    one = b"1\r\na\r\n"
    [got] = Edge().talk(chunked(body=one * 1000 + b"0\r\n\r\n")).requests
    assert got.body == b"a" * 1000
    assert_refused(Edge().talk(chunked(body=one * 5000 + b"0\r\n\r\n")), 400)
    assert_refused(Edge().talk(chunked(body=b""), *[one] * 5000), 400)


@pytest.mark.parametrize("size", [b"1;" + b"x" * 1000, b"0" * 2000 + b"1"])
def test_a_flood_of_framing_is_refused(size: bytes) -> None:
    assert_refused(Edge().talk(chunked(body=b""), *[size + b"\r\na\r\n"] * 100), 400)
    assert_refused(Edge().talk(chunked(body=b"1;"), *[b"x" * 1000] * 100), 400)


def test_a_flood_of_trailers_is_refused() -> None:
    edge = Edge().talk(chunked(body=b"0\r\n"), *[b"X: " + b"a" * 1000 + b"\r\n"] * 100)
    assert_refused(edge, 400)


def test_what_comes_too_early_is_bounded() -> None:
    edge = Edge().send(GET, *[b"x" * 8192] * 9)
    answer(edge.exchange, b"ok")
    assert edge.transport.closed
    assert edge.replies[0].headers[b"connection"] == b"close"
    edge.settle()
    assert len(edge.requests) == 1


# --- 100-continue


def test_a_client_that_waits_for_100_is_told_to_go_on() -> None:
    data = post(b"abc", b"Expect: 100-Continue")
    edge = Edge().talk(data[:-3])
    assert edge.transport.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    edge.talk(b"a", b"bc")
    assert [reply.status for reply in edge.replies] == [100, 200]


@pytest.mark.parametrize(
    "data",
    [
        post(b"abc", b"Expect: 100-continue"),
        post(b"", b"Expect: 100-continue"),
        post(b"abc", b"Expect: 100-continue", b"Connection: close").replace(b"/1.1", b"/1.0"),
    ],
    ids=["the body is there", "no body", "HTTP/1.0"],
)
def test_no_100_where_none_is_due(data: bytes) -> None:
    assert [reply.status for reply in Edge().talk(data).replies] == [200]


# --- answers


def test_a_streamed_answer_is_chunked_and_its_head_travels_with_the_first_bytes() -> None:
    edge = Edge().send(GET)
    edge.exchange.start(200, [(b"content-type", b"text/event-stream")], None)
    assert edge.transport.written == b""
    edge.exchange.write(b"one")
    assert edge.transport.written.endswith(b"\r\n\r\n3\r\none\r\n")
    edge.exchange.write(b"")
    edge.exchange.write(b"t" * 17)
    edge.exchange.finish()
    [reply] = edge.replies
    assert reply.body == b"one" + b"t" * 17
    assert edge.exchange.bytes_sent == 20
    assert not edge.transport.over


def test_an_aborted_chunked_answer_has_no_last_chunk() -> None:
    edge = Edge().send(GET)
    edge.exchange.start(200, [], None)
    edge.exchange.write(b"one")
    edge.exchange.abort()
    assert edge.transport.written.endswith(b"3\r\none\r\n")
    assert edge.transport.closed
    edge.exchange.write(b"two")
    edge.exchange.finish()
    assert edge.transport.written.endswith(b"3\r\none\r\n")


def test_an_aborted_answer_of_known_length_is_reset() -> None:
    edge = Edge().send(GET)
    edge.exchange.start(200, [], 10)
    edge.exchange.write(b"one")
    edge.exchange.abort()
    assert edge.transport.aborted


def test_an_abort_before_the_start_closes() -> None:
    edge = Edge().send(GET)
    edge.exchange.abort()
    assert edge.transport.closed
    assert edge.transport.written == b""


@pytest.mark.parametrize("length", [5, None])
def test_head_has_the_headers_and_no_body(length: int | None) -> None:
    edge = Edge().send(b"HEAD /a HTTP/1.1\r\nHost: a\r\n\r\n")
    edge.exchange.start(200, [], length)
    edge.exchange.write(b"hello")
    edge.exchange.finish()
    [reply] = edge.replies
    assert reply.headers.get(b"content-length") == (b"5" if length else None)
    assert edge.exchange.bytes_sent == 0
    edge.talk(GET)
    assert [reply.body for reply in edge.replies] == [b"", b"/a"]


def test_204_has_no_length() -> None:
    edge = Edge().send(GET)
    edge.exchange.start(204, [], 0)
    edge.exchange.finish()
    [reply] = edge.replies
    assert b"content-length" not in reply.headers
    assert b"transfer-encoding" not in reply.headers


def test_an_answer_without_body_is_only_a_head() -> None:
    edge = Edge().send(GET)
    edge.exchange.start(200, [], 0)
    edge.exchange.finish()
    assert replies(edge.transport.written)[0].headers[b"content-length"] == b"0"


# --- versions and keep-alive


def test_http_1_0_closes_unless_asked() -> None:
    edge = Edge().talk(b"GET /a HTTP/1.0\r\n\r\n")
    assert edge.replies[0].headers[b"connection"] == b"close"
    assert edge.transport.closed
    edge = Edge().talk(*[b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"] * 2)
    assert [r.headers[b"connection"] for r in edge.replies] == [b"keep-alive"] * 2
    assert not edge.transport.over


def test_http_1_0_gets_a_stream_that_ends_with_the_connection() -> None:
    edge = Edge().send(b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    edge.exchange.start(200, [], None)
    edge.exchange.write(b"one")
    edge.exchange.write(b"two")
    edge.exchange.finish()
    [reply] = edge.replies
    assert reply.body == b"onetwo"
    assert edge.transport.closed


def test_http_1_0_sees_that_a_stream_was_cut() -> None:
    edge = Edge().send(b"GET /a HTTP/1.0\r\n\r\n")
    edge.exchange.start(200, [], None)
    edge.exchange.write(b"one")
    edge.exchange.abort()
    assert edge.transport.aborted


def test_a_client_may_ask_for_the_end() -> None:
    edge = Edge().talk(request(b"Connection: close", line=b"GET /a HTTP/1.1") + GET)
    assert len(edge.requests) == 1
    assert edge.replies[0].headers[b"connection"] == b"close"
    assert edge.transport.closed


def test_draining_ends_connections_after_their_answer() -> None:
    edge = Edge().send(GET)
    edge.listener.keep_alive = False
    edge.connection.shut_idle()
    assert not edge.transport.over
    edge.settle()
    assert edge.replies[0].headers[b"connection"] == b"close"
    assert edge.transport.closed


def test_draining_closes_what_is_idle_and_not_what_is_arriving() -> None:
    idle = Edge().talk(GET)
    idle.connection.shut_idle()
    assert idle.transport.closed
    for part in (GET[:5], post(b"abc")[:-1]):
        arriving = Edge().send(part)
        arriving.connection.shut_idle()
        assert not arriving.transport.over


def test_who_was_promised_another_request_has_a_moment_for_it() -> None:
    """The answer had begun before draining did, and the client may be asking already."""
    edge = Edge().send(GET)
    edge.exchange.start(200, [], 2)
    edge.listener.admission.draining = True
    edge.listener.keep_alive = False
    edge.connection.shut_idle()
    edge.exchange.finish(b"ok")
    edge.answered += 1
    assert b"connection" not in edge.replies[0].headers
    assert not edge.transport.over
    assert edge.connection.fresh
    edge.talk(GET)
    assert edge.replies[1].headers[b"connection"] == b"close"
    assert edge.transport.closed


def test_nobody_waits_for_long_while_draining() -> None:
    edge = Edge().talk(GET)
    edge.listener.clock += FRESH_S
    assert not edge.connection.fresh
    edge.listener.admission.draining = True
    edge.talk(GET)
    assert edge.connection.fresh
    assert edge.connection.deadline_at == edge.listener.clock + FRESH_S
    edge.connection.on_deadline(edge.connection.deadline_at)
    assert edge.transport.closed


# --- clients that leave


@pytest.mark.parametrize("sent", [b"", GET[:10], post(b"abc")[:-1], chunked(body=b"5\r\nab")])
def test_a_client_that_leaves_early_costs_nothing(sent: bytes) -> None:
    edge = Edge().send(sent).lose()
    assert edge.requests == []
    assert edge.listener.open == 0
    assert edge.connection.deadline_at == NEVER


@pytest.mark.parametrize("phase", ["waiting", "started", "streaming"])
def test_a_client_that_leaves_ends_the_work(phase: str) -> None:
    edge = Edge().send(GET)
    if phase != "waiting":
        edge.exchange.start(200, [], None)
    if phase == "streaming":
        edge.exchange.write(b"one")
    written = edge.transport.written
    edge.lose()
    assert edge.exchange.gone
    assert edge.task.cancelled
    edge.exchange.start(200, [], None)
    edge.exchange.write(b"two")
    edge.exchange.finish()
    edge.exchange.abort()
    assert edge.transport.written == written
    assert edge.listener.open == 0


def test_a_client_that_leaves_after_its_answer_cancels_nothing() -> None:
    edge = Edge().talk(GET).lose()
    assert not edge.exchange.gone
    assert not edge.task.cancelled


def test_a_client_that_closes_its_side_has_left() -> None:
    assert Edge().connection.eof_received() is False


# --- slow clients

TIMES = ListenTimeouts(
    head_s=10, body_s=60, body_min_rate=100, keep_alive_s=75, write_idle_s=30, handshake_s=5
)


def test_a_silent_new_connection_is_closed_without_a_word() -> None:
    edge = Edge(timeouts=TIMES).wait(9.9)
    assert not edge.transport.over
    edge.wait(0.2)
    assert edge.transport.closed
    assert edge.transport.written == b""


def test_a_slow_head_is_refused_however_steadily_it_drips() -> None:
    edge = Edge(timeouts=TIMES)
    for byte in (b"GET / HTTP/1.1\r\nHost: a\r\nX: aaaaaaaaaaaa")[:20]:
        edge.wait(0.49).send(bytes([byte]))
    assert edge.transport.written == b""
    edge.wait(0.7)
    assert_refused(edge, 408)


def test_the_head_of_a_later_request_has_its_own_deadline() -> None:
    edge = Edge(timeouts=TIMES).talk(GET).wait(70).send(GET[:5]).wait(9)
    assert not edge.transport.half_closed
    edge.wait(1.1)
    assert [reply.status for reply in edge.replies] == [200, 408]


def test_an_idle_connection_is_closed_without_a_word() -> None:
    edge = Edge(timeouts=TIMES).talk(GET).wait(74.9)
    assert not edge.transport.over
    edge.wait(0.2)
    assert edge.transport.closed
    assert len(edge.replies) == 1


def test_a_handler_may_take_its_time() -> None:
    edge = Edge(timeouts=TIMES).send(GET).wait(86_400)
    assert not edge.transport.over


def test_a_body_must_arrive_at_a_rate() -> None:
    edge = Edge(timeouts=TIMES).send(request(b"Content-Length: 10000"))
    for _ in range(20):
        edge.wait(1).send(b"a" * 150)
    edge.wait(9)
    assert not edge.transport.half_closed
    edge.wait(1.1)
    assert_refused(edge, 408)


def test_a_body_that_stalls_at_first_is_given_a_moment() -> None:
    edge = Edge(timeouts=TIMES).send(request(b"Content-Length: 3")).wait(4.9).talk(b"abc")
    assert len(edge.requests) == 1
    edge = Edge(timeouts=TIMES).send(request(b"Content-Length: 3")).wait(5.1)
    assert_refused(edge, 408)


def test_a_body_has_a_deadline_at_any_rate() -> None:
    edge = Edge(timeouts=TIMES).send(request(b"Content-Length: 1000000"))
    for _ in range(59):
        edge.wait(1).send(b"a" * 1000)
    assert not edge.transport.half_closed
    edge.wait(1.1)
    assert_refused(edge, 408)


def test_a_client_that_does_not_read_is_cut_off() -> None:
    edge = Edge(timeouts=TIMES).send(GET)
    source = edge.exchange.source = Source()
    edge.connection.pause_writing()
    assert source.told == ["pause"]
    edge.wait(29)
    edge.connection.resume_writing()
    assert source.told == ["pause", "resume"]
    edge.wait(1000)
    assert not edge.transport.over
    edge.connection.pause_writing()
    edge.wait(30.1)
    assert edge.transport.aborted


def test_an_answer_that_is_not_read_holds_back_the_next_request() -> None:
    edge = Edge(timeouts=TIMES).send(GET + post(b"two"))
    edge.connection.pause_writing()
    edge.settle().talk(post(b"three"))
    assert len(edge.requests) == 1
    edge.connection.resume_writing()
    edge.settle()
    assert [r.body for r in edge.requests] == [b"", b"two", b"three"]


def test_an_answer_that_was_read_late_leaves_the_deadlines_in_place() -> None:
    edge = Edge(timeouts=TIMES).send(GET)
    edge.connection.pause_writing()
    edge.settle()
    edge.connection.resume_writing()
    assert edge.connection.deadline_at == edge.listener.clock + 75
    edge.send(GET[:4]).wait(10.1)
    assert [reply.status for reply in edge.replies] == [200, 408]


def test_too_much_behind_an_answer_that_is_not_read_ends_the_connection() -> None:
    edge = Edge(timeouts=TIMES).send(GET)
    edge.connection.pause_writing()
    edge.settle().send(*[b"x" * 8192] * 9)
    edge.connection.resume_writing()
    assert edge.transport.closed


def test_a_flush_that_takes_too_long_is_cut_off() -> None:
    edge = Edge(timeouts=TIMES).talk(request(b"Connection: close", line=b"GET /a HTTP/1.1"))
    assert edge.transport.closed
    edge.wait(29)
    assert not edge.transport.aborted
    edge.wait(1.1)
    assert edge.transport.aborted


def test_a_head_like_the_last_one_is_read_alike_and_its_length_is_its_own() -> None:
    edge = Edge()
    for body in (b"a", b"bb", b"c" * 1000, b"", b"d"):
        edge.talk(post(body, b"X-Kind: same"))
    edge.talk(post(b"e", b"X-Kind: other"), post(b"f", b"X-Kind: other"))
    assert [r.body for r in edge.requests] == [b"a", b"bb", b"c" * 1000, b"", b"d", b"e", b"f"]
    assert [r.header(b"x-kind") for r in edge.requests] == [b"same"] * 5 + [b"other"] * 2


@pytest.mark.parametrize(
    "length", [b"-1", b"+1", b"1 ", b"1, 1", b"0x1", b"1\r\nContent-Length: 1"]
)
def test_a_head_like_the_last_one_hides_no_bad_length(length: bytes) -> None:
    good = post(b"a", b"X-Kind: same")
    bad = good.replace(b"Content-Length: 1", b"Content-Length: " + length)
    assert bad != good
    edge = Edge().talk(good)
    edge.talk(bad)
    assert [reply.status for reply in edge.replies] == [200, 400]
    assert len(edge.requests) == 1


def test_a_head_like_the_last_one_is_held_to_the_limit_of_the_body() -> None:
    edge = Edge(limits=ListenLimits(max_body_bytes=1024)).talk(post(b"a"))
    edge.talk(request(b"Content-Length: 1025"))
    assert [reply.status for reply in edge.replies] == [200, 413]


def test_a_client_that_reads_slowly_is_waited_for_as_long_as_it_reads() -> None:
    edge = Edge(timeouts=ListenTimeouts(write_idle_s=10.0)).send(GET)
    edge.connection.pause_writing()
    for left in (90_000, 80_000, 70_000):
        edge.transport.buffered = left
        edge.wait(10.1)
        assert not edge.transport.aborted
    edge.wait(10.1)
    assert edge.transport.aborted


class Misdirected:
    """TLS whose connections are for the host `a` alone."""

    rules = object()

    def admit(self, session: object, request: Request) -> None:
        if request.header(b"host") != b"a":
            raise MisdirectedRequest("This connection was made for another host.")


def test_a_request_that_came_over_the_wrong_connection_is_refused_and_the_next_one_read() -> None:
    edge = Edge()
    edge.listener.tls = Misdirected()
    edge.talk(GET + GET.replace(b"Host: a", b"Host: b") + post(b"{}") + GET)
    assert [reply.status for reply in edge.replies] == [200, 421, 200, 200]
    assert len(edge.requests) == 3
    assert [error.status for error in edge.listener.refusals] == [421]
    error = orjson.loads(edge.replies[1].body)["error"]
    assert error["code"] == "misdirected_request"
    assert error["request_id"].encode() == edge.replies[1].headers[b"x-request-id"]
    assert not edge.transport.over
