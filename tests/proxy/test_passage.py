from __future__ import annotations

from itertools import pairwise
from typing import Any

import orjson
import pytest
from fakes import request
from hypothesis import example, given, settings
from hypothesis import strategies as st
from replica_wire import Wire

from backend.http1_client import Connection
from core.errors import UpstreamError
from core.exchange import Header
from proxy.http1.exchange import Http1Exchange
from proxy.passage import Passage
from proxy.scanner import EventScanner
from proxy.token_gaps import BOUNDS, StreamGaps, TokenGaps

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"
USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n'
ERROR = b'data: {"error":{"message":"no"}}\n\n'
FINISH = b'data: {"id":"c","choices":[{"delta":{"content":""},"finish_reason":"stop"}]}\n\n'


def token(text: str, name: str = "c") -> bytes:
    choice = {"delta": {"content": text}, "logprobs": None, "finish_reason": None}
    return b"data: " + orjson.dumps({"id": name, "choices": [choice]}) + b"\n\n"


def chunk(data: bytes, style: str = "%x") -> bytes:
    return (style % len(data)).encode() + b"\r\n" + data + b"\r\n"


def unframed(answer: bytes) -> tuple[bytes, bool]:
    """The body of a chunked answer, and whether it is complete."""
    _, _, rest = answer.partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        assert rest[length : length + 2] == b"\r\n"
        body, rest = body + rest[:length], rest[length + 2 :]
        if not length:
            assert not rest
            return body, True
    return body, False


class Client:
    """An AnswerSink that records."""

    keep_alive = True
    date = b"date: today\r\n"

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.send = self.writes.append

    def end(self, data: bytes) -> None:
        self.writes.append(data)

    def cut(self, data: bytes, *, hard: bool) -> None:
        raise AssertionError


class Stream:
    """A stream from a replica's socket to a client's, with the short way from the first body byte
    on if it is `short`."""

    def __init__(self, *, strip: bool = False, short: bool = True) -> None:
        self.wire, self.client = Wire(), Client()
        self.exchange = Http1Exchange(self.client, request())
        self.scanner = EventScanner(self.exchange.write, self._deliver, strip_usage=strip)
        self.passage: Passage | None = None
        self.clock = 0.0
        self.gaps = StreamGaps(TokenGaps(), lambda: self.clock)
        self.ended, self.failed, self._short = False, "", short
        self.on_body: Any = self._first
        self.connection = Connection(self.wire.protocol, "r")
        self.connection.send(b"POST", b"/", [], b"", self)

    def _deliver(self, data: bytes) -> None:
        self.exchange.finish(data)
        self.on_body = lambda data: None

    def _first(self, data: bytes) -> None:
        self.on_body = self.scanner.push
        self.scanner.push(data)
        framed = self.exchange.framed
        if self._short and framed is not None:
            self.gaps.begin(0.0)
            self.passage = Passage(self.scanner, framed, self.gaps)
            read = self.connection.divert(self.passage.take)
            assert read is not None
            self.passage.read = read
            self.on_body = self.passage.push

    @property
    def progress(self) -> int:
        return self.scanner.events

    def on_head(self, status: int, headers: list[Header]) -> None:
        self.exchange.start(status, [], None)

    def on_end(self) -> None:
        self.ended = True

    def on_failed(self, error: UpstreamError) -> None:
        self.failed = str(error)

    @property
    def events(self) -> int:
        return self.scanner.events + (0 if self.passage is None else self.passage.events)

    @property
    def seen(self) -> dict[str, object]:
        """What the client got, and what the gateway believes about it."""
        body_bytes = 0 if self.passage is None else self.passage.body_bytes
        return {
            "answer": unframed(b"".join(self.client.writes)),
            "bytes": self.exchange.bytes_sent + body_bytes,
            "events": self.events,
            "usage": self.scanner.usage,
            "error": self.scanner.error,
            "reads": len(self.client.writes),
            "ended": self.ended,
            "failed": self.failed,
            "released": self.wire.released_count,
        }


def test_whole_chunks_pass_as_they_are() -> None:
    stream = Stream()
    stream.wire.feed(HEAD, chunk(token("a")), chunk(token("b")))
    before = len(stream.client.writes)
    whole = [chunk(token(text)) for text in ("c", "d", " é\\", "", "d")]
    stream.wire.feed(*whole)
    assert stream.client.writes[before:] == whole
    assert stream.passage is not None
    # The second read was proof that the short way is open, each new length is learned once.
    assert stream.passage.events == 3
    assert all(a is b for a, b in zip(stream.client.writes[before:][:2], whole[:2], strict=True))
    stream.wire.feed(chunk(DONE), b"0\r\n\r\n")
    assert stream.ended
    assert unframed(b"".join(stream.client.writes))[1]
    assert stream.events == 7


@pytest.mark.parametrize(
    "between",
    [
        chunk(USAGE),
        chunk(ERROR),
        chunk(token('says "no"')),
        chunk(token("x", "another")),
        chunk(token("b") + token("c")),
        chunk(b": comment\n\n"),
        chunk(token("b"), "%X"),
        chunk(token("b"), "%x;a=b"),
        chunk(token("b"), "00%x"),
        chunk(token("b")) + chunk(token("c")),
        chunk(token("b")) + chunk(token("c"))[:9],
        chunk(token("b"))[:-1],
        chunk(token("b"))[:40],
        chunk(chunk(token("b"))),
        b"%x\r\n" % 500 + chunk(token("b")),
    ],
)
def test_what_is_not_one_event_like_the_last_goes_the_ordinary_way(between: bytes) -> None:
    seen = []
    for short in (True, False):
        stream = Stream(short=short, strip=True)
        stream.wire.feed(HEAD, *[chunk(token("a"))] * 3, between)
        stream.wire.feed(chunk(token("b")), chunk(token("c")))
        seen.append(stream.seen)
        assert stream.passage is None or stream.passage.events
    assert seen[0] == seen[1]


EVENTS = st.one_of(
    st.builds(token, st.sampled_from(["a", "b", "", '"', "\\", "\n\n", "0\r\n\r\n", "x" * 90])),
    st.builds(token, st.sampled_from(["a", "bb"]), st.sampled_from(["c", "d"])),
    st.sampled_from([USAGE, FINISH, b": comment\n\n", ERROR]),
)
STYLES = st.sampled_from(["%x", "%x", "%x", "%X", "0%x", "%x;e=1"])
PIECES = st.lists(st.tuples(EVENTS, STYLES, st.integers(0, 3)), max_size=12)


@settings(max_examples=120, deadline=None)
@given(pieces=PIECES, strip=st.booleans(), cuts=st.lists(st.integers(0, 1500), max_size=4))
@example(pieces=[(token("a"), "%x", 0)] * 5, strip=True, cuts=[])
def test_nobody_can_tell_which_way_was_taken(
    pieces: list[tuple[bytes, str, int]], strip: bool, cuts: list[int]
) -> None:
    """Chunks of one event (0), of part of one (1), or joined with the next one (2)."""
    chunks, held = [], b""
    for event, style, how in [*pieces, (DONE, "%x", 0)]:
        held += event
        if how == 1 and len(held) > 20:
            chunks.append(chunk(held[:17], style))
            held = held[17:]
        elif how != 2:
            chunks.append(chunk(held, style))
            held = b""
    if held:
        chunks.append(chunk(held))
    # Mostly one chunk a read, and now and then a cut anywhere or none.
    raw, edges, at = b"".join([*chunks, b"0\r\n\r\n"]), set(cuts), 0
    for number, one in enumerate(chunks):
        at += len(one)
        if number % 5 != 4:
            edges.add(at)
    marks = sorted({0, len(raw), *(edge for edge in edges if edge < len(raw))})
    reads = [raw[a:b] for a, b in pairwise(marks)]
    seen = []
    for short in (True, False):
        stream = Stream(strip=strip, short=short)
        stream.wire.feed(HEAD, *reads)
        seen.append(stream.seen)
    assert seen[0] == seen[1]
    assert seen[0]["ended"]


def test_the_next_response_is_read_the_ordinary_way() -> None:
    stream = Stream()
    stream.wire.feed(HEAD, *[chunk(token("a"))] * 4, chunk(DONE), b"0\r\n\r\n")
    assert stream.wire.released_count == 1
    _, reader = stream.wire.request()
    stream.wire.feed(HEAD, chunk(token("a")), b"0\r\n\r\n")
    assert (reader.body, reader.ended) == (token("a"), True)


def test_nothing_is_read_of_a_replica_whose_client_left() -> None:
    stream = Stream()
    stream.wire.feed(HEAD, *[chunk(token("a"))] * 4)
    stream.exchange.source = stream.connection
    stream.exchange.detach()
    assert not stream.wire.transport.reading
    assert stream.exchange.framed is None
    stream.connection.abort()


def test_a_parted_passage_writes_nowhere() -> None:
    stream = Stream()
    stream.wire.feed(HEAD, *[chunk(token("a"))] * 4)
    assert stream.passage is not None
    written = len(stream.client.writes)
    stream.passage.part()
    stream.wire.feed(chunk(token("a")))
    assert len(stream.client.writes) == written
    assert "events=2" in repr(stream.passage)


def test_an_old_client_gets_no_chunks() -> None:
    stream = Stream()
    stream.exchange.request.version = "1.0"
    stream.wire.feed(HEAD, *[chunk(token("a"))] * 4)
    assert stream.passage is None
    assert b"".join(stream.client.writes).endswith(token("a") * 4)


def test_gaps_are_counted_on_both_ways() -> None:
    """In order: the ordinary way twice, the short one, several at once, and none."""
    stream = Stream()
    stream.wire.feed(HEAD, chunk(token("a")))
    for ms, read in (
        (4, chunk(token("b"))),
        (20, chunk(token("c"))),
        (30, chunk(token("d"))),
        (2000, chunk(token("e") + token("f"))),
        (2010, chunk(b": comment\n\n")),
    ):
        stream.clock = ms / 1000
        stream.wire.feed(read)
    assert stream.passage is not None
    assert stream.passage.events > 0
    expected = {0: 1, BOUNDS.index(0.005): 1, BOUNDS.index(0.02): 1, BOUNDS.index(0.01): 1}
    expected[BOUNDS.index(2.5)] = 1
    assert {place: n for place, n in enumerate(stream.gaps.counts) if n} == expected
    stream.gaps.end()
    assert stream.gaps.at == 2.0
