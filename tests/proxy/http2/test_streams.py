"""The rules of RFC 9113 and RFC 7541 that a client can break, one by one, on both engines.

What is told of a broken rule is either that the stream is reset, or that the connection ends: RFC
9113 section 5.4.2 lets an endpoint treat the first as the second.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from http2_edge import Http2Edge
from http2_frames import GET, POST, PREFACE, Writer, data, ping, reset, settings, window_update

from core.exchange import Header
from core.http2 import frames
from core.http2.engine import ErrorCode
from core.http2.engines import EngineName
from core.http2.frames import frame

PADDED, PRIORITY_FLAG = 0x8, 0x20
END = frames.END_STREAM | frames.END_HEADERS
PROTOCOL, FLOW, CLOSED, SIZE, COMPRESSION, REFUSED = (
    ErrorCode.PROTOCOL_ERROR,
    ErrorCode.FLOW_CONTROL_ERROR,
    ErrorCode.STREAM_CLOSED,
    ErrorCode.FRAME_SIZE_ERROR,
    ErrorCode.COMPRESSION_ERROR,
    ErrorCode.REFUSED_STREAM,
)
Said = Callable[[Writer], bytes]


@dataclass(frozen=True)
class Rule:
    """`said` breaks it; one of `codes` must be told, in a GOAWAY if `connection`."""

    said: Said
    codes: Sequence[ErrorCode]
    connection: bool = True


def head(stream: int = 1, *, end: bool = True, headers: Sequence[Header] = GET) -> Said:
    return lambda client: client.head(stream, headers, end=end)


def join(*parts: Said | bytes) -> Said:
    return lambda client: b"".join(
        part if isinstance(part, bytes) else part(client) for part in parts
    )


def raw(kind: int, flags: int, stream: int, payload: bytes) -> Said:
    return lambda client: frame(kind, flags, stream, payload)


def block(payload: bytes, flags: int = END) -> Said:
    """HEADERS with this after the fields of a good request."""
    return lambda client: frame(frames.HEADERS, flags, 1, client.block(GET) + payload)


def huffman(after: str) -> bytes:
    """The field x: test, of which the value is 20 bits of Huffman's code and then what is given."""
    bits = "01001001010100001001" + after  # RFC 7541 appendix B
    value = int(bits, 2).to_bytes(len(bits) // 8, "big")
    return b"\x00\x01x" + bytes([0x80 | len(value)]) + value


def malformed(*headers: Header, without: bytes = b"") -> Rule:
    kept = [field for field in GET if field[0] != without]
    return Rule(head(headers=[*kept, *headers]), [PROTOCOL], connection=False)


OPEN_BLOCK = raw(frames.HEADERS, frames.END_STREAM, 1, b"\x82")
PART = raw(frames.CONTINUATION, 0, 1, b"\x87")
LARGE = 2**14 + 1

RULES: dict[str, Rule] = {
    # 4.2 frame size
    "4.2 DATA too large": Rule(
        join(head(end=False, headers=POST), data(1, b"x" * LARGE)), [SIZE], connection=False
    ),
    "4.2 HEADERS too large": Rule(raw(frames.HEADERS, END, 1, b"\0" * LARGE), [SIZE]),
    # 4.3 field section compression
    "4.3 a block that cannot be decoded": Rule(
        raw(frames.HEADERS, END, 1, b"\x40\x01\xff\xff"), [COMPRESSION]
    ),
    "4.3 PRIORITY inside a block": Rule(
        join(OPEN_BLOCK, raw(frames.PRIORITY, 0, 1, bytes(4) + b"\x10")), [PROTOCOL]
    ),
    "4.3 HEADERS of another stream inside a block": Rule(join(OPEN_BLOCK, head(3)), [PROTOCOL]),
    # 5.1 stream states
    "5.1 DATA on an idle stream": Rule(lambda _: data(1, b"x"), [PROTOCOL]),
    "5.1 RST_STREAM on an idle stream": Rule(lambda _: reset(1), [PROTOCOL]),
    "5.1 WINDOW_UPDATE on an idle stream": Rule(lambda _: window_update(1, 1), [PROTOCOL]),
    "5.1 CONTINUATION on an idle stream": Rule(
        raw(frames.CONTINUATION, frames.END_HEADERS, 1, b"\x82"), [PROTOCOL]
    ),
    "5.1 DATA on a half-closed stream": Rule(
        join(head(), data(1, b"x")), [CLOSED], connection=False
    ),
    "5.1 HEADERS on a half-closed stream": Rule(join(head(), head()), [CLOSED], connection=False),
    "5.1 CONTINUATION on a half-closed stream": Rule(
        join(head(), raw(frames.CONTINUATION, frames.END_HEADERS, 1, b"\x82")), [PROTOCOL, CLOSED]
    ),
    "5.1 DATA after RST_STREAM": Rule(
        join(head(end=False, headers=POST), reset(1), data(1, b"x")), [CLOSED], connection=False
    ),
    "5.1 HEADERS after RST_STREAM": Rule(
        join(head(end=False, headers=POST), reset(1), head()),
        [CLOSED, PROTOCOL],
        connection=False,
    ),
    "5.1 CONTINUATION after RST_STREAM": Rule(
        join(
            head(end=False, headers=POST),
            reset(1),
            raw(frames.CONTINUATION, frames.END_HEADERS, 1, b"\x82"),
        ),
        [PROTOCOL, CLOSED],
    ),
    # 5.1.1 stream identifiers
    "5.1.1 a stream of the server": Rule(head(2), [PROTOCOL]),
    "5.1.1 a lower stream": Rule(join(head(5), head(3)), [PROTOCOL, CLOSED]),
    # 5.5 extensions
    "5.5 an unknown frame inside a block": Rule(
        join(OPEN_BLOCK, raw(0xBA, 0, 0, b"grease")), [PROTOCOL]
    ),
    # 6.1 DATA
    "6.1 DATA on stream 0": Rule(lambda _: data(0, b"x"), [PROTOCOL]),
    "6.1 padding longer than DATA": Rule(
        join(head(end=False, headers=POST), raw(frames.DATA, PADDED, 1, b"\x05abcd")), [PROTOCOL]
    ),
    # 6.2 HEADERS
    "6.2 HEADERS on stream 0": Rule(head(0), [PROTOCOL]),
    "6.2 padding longer than HEADERS": Rule(
        raw(frames.HEADERS, END | PADDED, 1, b"\x10\x82\x87"), [PROTOCOL]
    ),
    # 6.3 PRIORITY
    "6.3 PRIORITY on stream 0": Rule(raw(frames.PRIORITY, 0, 0, bytes(5)), [PROTOCOL]),
    "6.3 PRIORITY of four bytes": Rule(
        join(head(), raw(frames.PRIORITY, 0, 1, bytes(4))), [SIZE], connection=False
    ),
    # 6.4 RST_STREAM
    "6.4 RST_STREAM on stream 0": Rule(lambda _: reset(0), [PROTOCOL]),
    "6.4 RST_STREAM of three bytes": Rule(
        join(head(), raw(frames.RST_STREAM, 0, 1, bytes(3))), [SIZE]
    ),
    # 6.5 SETTINGS
    "6.5 an acknowledgement with a payload": Rule(
        raw(frames.SETTINGS, frames.ACK, 0, bytes(6)), [SIZE]
    ),
    "6.5 SETTINGS on a stream": Rule(
        join(head(), raw(frames.SETTINGS, 0, 1, b"\0\3\0\0\0\x64")), [PROTOCOL]
    ),
    "6.5 SETTINGS of three bytes": Rule(raw(frames.SETTINGS, 0, 0, bytes(3)), [SIZE]),
    "6.5.2 ENABLE_PUSH of 2": Rule(lambda _: settings(_2=2), [PROTOCOL]),
    "6.5.2 a window of 2**31": Rule(lambda _: settings(_4=2**31), [FLOW]),
    "6.5.2 frames of less than 2**14": Rule(lambda _: settings(_5=16_383), [PROTOCOL]),
    "6.5.2 frames of 2**24": Rule(lambda _: settings(_5=2**24), [PROTOCOL]),
    # 6.6 PUSH_PROMISE
    "8.4 PUSH_PROMISE of a client": Rule(
        join(head(), raw(frames.PUSH_PROMISE, frames.END_HEADERS, 1, b"\0\0\0\2\x82")), [PROTOCOL]
    ),
    # 6.7 PING
    "6.7 PING on a stream": Rule(raw(frames.PING, 0, 1, bytes(8)), [PROTOCOL]),
    "6.7 PING of six bytes": Rule(raw(frames.PING, 0, 0, bytes(6)), [SIZE]),
    # 6.8 GOAWAY
    "6.8 GOAWAY on a stream": Rule(raw(frames.GOAWAY, 0, 1, bytes(8)), [PROTOCOL]),
    # 6.9 WINDOW_UPDATE
    "6.9 an increment of 0": Rule(lambda _: window_update(0, 0), [PROTOCOL]),
    "6.9 an increment of 0 of a stream": Rule(
        join(head(), window_update(1, 0)), [PROTOCOL], connection=False
    ),
    "6.9 WINDOW_UPDATE of three bytes": Rule(raw(frames.WINDOW_UPDATE, 0, 0, bytes(3)), [SIZE]),
    "6.9.1 a window above 2**31-1": Rule(lambda _: window_update(0, 2**31 - 1) * 2, [FLOW]),
    "6.9.1 a stream's window above 2**31-1": Rule(
        join(head(), window_update(1, 2**31 - 1) * 2), [FLOW], connection=False
    ),
    "6.9.2 a stream's window above 2**31-1 by SETTINGS": Rule(
        join(head(), window_update(1, 2**31 - 1 - 65_535), settings(_4=65_536)), [FLOW]
    ),
    "6.9.1 more than its window": Rule(
        join(
            lambda client: client.head(1, POST),
            *(data(1, b"x" * 16_384) for _ in range(17)),
        ),
        [FLOW],
        connection=False,
    ),
    # 6.10 CONTINUATION
    "6.10 another frame inside a block": Rule(join(OPEN_BLOCK, PART, data(1, b"x")), [PROTOCOL]),
    "6.10 CONTINUATION on stream 0": Rule(
        join(OPEN_BLOCK, raw(frames.CONTINUATION, frames.END_HEADERS, 0, b"")), [PROTOCOL]
    ),
    "6.10 CONTINUATION after a whole block": Rule(
        join(head(end=False, headers=POST), raw(frames.CONTINUATION, frames.END_HEADERS, 1, b"")),
        [PROTOCOL],
    ),
    "6.10 CONTINUATION after DATA": Rule(
        join(head(end=False, headers=POST), data(1, b"x"), PART), [PROTOCOL]
    ),
    # 8.1 message framing
    "8.1 a second head that ends nothing": Rule(
        join(head(end=False, headers=POST), head(end=False, headers=[(b"a", b"b")])),
        [PROTOCOL],
        connection=False,
    ),
    "8.1 a pseudo-header in the trailers": Rule(
        join(head(end=False, headers=POST), head(headers=[(b":method", b"GET")])),
        [PROTOCOL],
        connection=False,
    ),
    "8.1.1 a body shorter than announced": Rule(
        join(head(end=False, headers=[*POST, (b"content-length", b"2")]), data(1, b"x", end=True)),
        [PROTOCOL],
        connection=False,
    ),
    "8.1.1 a body longer than announced": Rule(
        join(
            head(end=False, headers=[*POST, (b"content-length", b"2")]),
            data(1, b"x"),
            data(1, b"xx", end=True),
        ),
        [PROTOCOL],
        connection=False,
    ),
    "8.1.1 no body although announced": malformed((b"content-length", b"2")),
    # 8.2, 8.3 fields
    "8.2 upper case": malformed((b"X-Test", b"a")),
    "8.2.1 LF in a value": malformed((b"x", b"a\nb")),
    "8.2.1 NUL in a value": malformed((b"x", b"a\0b")),
    "8.2.1 a space before a value": malformed((b"x", b" a")),
    "8.2.1 a colon in a name": malformed((b"x:y", b"a")),
    "8.2.1 a space in a name": malformed((b"x y", b"a")),
    "8.2.2 connection": malformed((b"connection", b"keep-alive")),
    "8.2.2 keep-alive": malformed((b"keep-alive", b"timeout=5")),
    "8.2.2 proxy-connection": malformed((b"proxy-connection", b"keep-alive")),
    "8.2.2 transfer-encoding": malformed((b"transfer-encoding", b"chunked")),
    "8.2.2 upgrade": malformed((b"upgrade", b"h2c")),
    "8.2.2 te": malformed((b"te", b"gzip")),
    "8.3 an unknown pseudo-header": malformed((b":test", b"a")),
    "8.3 a pseudo-header of answers": malformed((b":status", b"200")),
    "8.3 a pseudo-header after a field": Rule(
        head(headers=[*GET[:3], (b"a", b"b"), GET[3]]), [PROTOCOL], connection=False
    ),
    "8.3.1 :method twice": malformed(GET[0]),
    "8.3.1 :scheme twice": malformed(GET[1]),
    "8.3.1 :path twice": malformed(GET[3]),
    "8.3.1 no :method": malformed(without=b":method"),
    "8.3.1 no :scheme": malformed(without=b":scheme"),
    "8.3.1 no :path": malformed(without=b":path"),
    "8.3.1 an empty :path": Rule(
        head(headers=[*GET[:3], (b":path", b"")]), [PROTOCOL], connection=False
    ),
    # RFC 7541
    "7541 2.3.3 an index without entry": Rule(block(b"\xff\x80\x01"), [COMPRESSION]),
    "7541 4.2 a table size at the end of a block": Rule(block(b"\x20"), [COMPRESSION]),
    "7541 5.2 padding of a whole byte": Rule(block(huffman("1" * 4 + "1" * 8)), [COMPRESSION]),
    "7541 5.2 padding of zeros": Rule(block(huffman("0" * 4)), [COMPRESSION]),
    "7541 5.2 EOS": Rule(block(huffman("1" * 30 + "1" * 6)), [COMPRESSION]),
    "7541 6.1 index 0": Rule(block(b"\x80"), [COMPRESSION]),
    "7541 6.3 a table larger than allowed": Rule(
        lambda client: frame(frames.HEADERS, END, 1, b"\x3f\xe2\x1f" + client.block(GET)),
        [COMPRESSION],
    ),
}

BLUNT = {COMPRESSION, SIZE}
"""For these h2 may say PROTOCOL_ERROR; the connection ends all the same."""


@pytest.fixture(params=["nghttp2", "h2"])
def engine(request: pytest.FixtureRequest) -> EngineName:
    name: EngineName = request.param
    return name


@pytest.fixture
def edge(engine: EngineName) -> Http2Edge:
    return Http2Edge(engine)


def told(edge: Http2Edge) -> tuple[set[int], set[int]]:
    """The codes of GOAWAYs and of RST_STREAMs."""
    goaways, resets = (
        {one.code for one in edge.reader.of(kind)} for kind in (frames.GOAWAY, frames.RST_STREAM)
    )
    return goaways, resets


@pytest.mark.parametrize(("name", "rule"), RULES.items(), ids=RULES.keys())
def test_a_broken_rule_is_told(edge: Http2Edge, engine: EngineName, name: str, rule: Rule) -> None:
    edge.send(rule.said(edge.client))
    goaways, resets = told(edge)
    found = goaways | (set() if rule.connection else resets)
    codes = set(rule.codes)
    if engine == "h2" and codes & BLUNT:
        codes.add(PROTOCOL)
    answer = edge.answers.get(1)
    refused = not rule.connection and answer is not None and answer.headers
    assert found & codes or (refused and answer.status == 400), (goaways, resets)
    if goaways:
        assert edge.transport.closed
    if name.startswith("8.") and not name.startswith("8.4"):
        assert edge.exchanges == []


FINE: dict[str, Said] = {
    "4.1 unknown frames": raw(0x16, 0, 0, bytes(8)),
    "4.1 undefined flags": raw(frames.PING, 0x16, 0, bytes(8)),
    "4.1 the reserved bit": raw(frames.PING, 0, 2**31, bytes(8)),
    "4.2 DATA of 2**14 bytes": join(head(1, end=False, headers=POST), data(1, b"x" * 2**14)),
    "5.1 WINDOW_UPDATE on a half-closed stream": join(head(1), window_update(1, 1)),
    "5.1 RST_STREAM on a half-closed stream": join(head(1), reset(1)),
    "5.1 PRIORITY on an idle stream": raw(frames.PRIORITY, 0, 3, bytes(4) + b"\x10"),
    "5.1 PRIORITY and WINDOW_UPDATE after RST_STREAM": join(
        head(1), reset(1), raw(frames.PRIORITY, 0, 1, bytes(4) + b"\x10"), window_update(1, 1)
    ),
    "5.5 an extension": raw(0xBA, 0xFF, 7, b"grease"),
    "6.1 padded DATA": join(
        head(1, end=False, headers=POST), raw(frames.DATA, PADDED, 1, b"\x03ab\0\0\0")
    ),
    "6.2 HEADERS with a priority": lambda client: frame(
        frames.HEADERS, END | PRIORITY_FLAG, 1, bytes(4) + b"\xff" + client.block(GET)
    ),
    "6.2 padded HEADERS": lambda client: frame(
        frames.HEADERS, END | PADDED, 1, b"\x03" + client.block(GET) + bytes(3)
    ),
    "6.5.2 an unknown setting": lambda _: settings(_255=1),
    "6.5.3 a setting twice": lambda _: frame(
        frames.SETTINGS, 0, 0, struct.pack(">HIHI", 4, 100, 4, 65_535)
    ),
    "6.7 an acknowledgement of nothing": lambda _: ping(ack=True),
    "6.10 a block in three": lambda client: (
        frame(frames.HEADERS, frames.END_STREAM, 1, client.block(GET[:2]))
        + frame(frames.CONTINUATION, 0, 1, client.block(GET[2:3]))
        + frame(frames.CONTINUATION, frames.END_HEADERS, 1, client.block(GET[3:]))
    ),
    "7 an unknown error code": join(head(1), reset(1, 0xFF)),
    "8.1 trailers": join(
        head(1, end=False, headers=POST), data(1, b"x"), head(1, headers=[(b"a", b"b")])
    ),
    "8.2.2 te of trailers": head(1, headers=[*GET, (b"te", b"trailers")]),
    "8.2.3 crumbs": head(1, headers=[*GET, (b"cookie", b"a=b"), (b"cookie", b"c=d")]),
    "7541 6.3 a table size of 0": lambda client: frame(
        frames.HEADERS, END, 1, b"\x20\x82\x87\x84\x41\x01a"
    ),
}


@pytest.mark.parametrize("said", FINE.values(), ids=FINE.keys())
def test_what_is_allowed_goes_well(edge: Http2Edge, said: Said) -> None:
    edge.send(said(edge.client), ping(b"hereyet?"))
    assert edge.reader.of(frames.PING)[-1].payload == b"hereyet?"
    assert told(edge) == (set(), set())
    edge.client = Writer()
    literal = b"\x82\x87\x00\x0a:authority\x01a\x00\x05:path\x02/a"
    edge.send(frame(frames.HEADERS, END, 5, literal))
    edge.answer(-1)
    assert edge.answers[5].complete


@pytest.mark.parametrize("by_settings", [False, True])
def test_an_answer_waits_for_every_byte_of_its_window(
    engine: EngineName, by_settings: bool
) -> None:
    """Section 6.9: a window of one byte, then negative, then open."""
    edge = Http2Edge(engine, client_settings=settings(_4=1))
    edge.send(edge.client.request(1, GET)).answer(0, b"hello")
    assert edge.answers[1].body == b"h"
    edge.send(settings(_4=0))
    edge.send(settings(_4=3) if by_settings else window_update(1, 3))
    assert edge.answers[1].body == b"hel"
    edge.send(window_update(1, 10))
    assert edge.answers[1].body == b"hello"
    assert edge.answers[1].complete


def test_a_preface_is_wanted_whole(engine: EngineName) -> None:
    edge = Http2Edge(engine, greeted=False).send(PREFACE[:-1] + b"x" + settings())
    assert edge.transport.closed


def test_a_stream_too_many_is_refused_and_the_connection_goes_on(edge: Http2Edge) -> None:
    """Section 5.1.2."""
    edge.send(*(edge.client.request(stream, GET) for stream in range(1, 203, 2)))
    assert edge.answers[201].reset == REFUSED
    assert not edge.transport.over
