from __future__ import annotations

from typing import Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.framing import (
    HEAD_BYTES,
    HEADERS,
    Refused,
    body_is_sized,
    check_head,
    read_head,
    read_http2_head,
)
from core.exchange import Header


def test_final_and_interim() -> None:
    assert [check_head(status, "1.1") for status in (100, 103, 200, 599)] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("status", "version"), [(0, "1.1"), (99, "1.1"), (600, "1.1"), (101, "1.1"), (200, "2.0")]
)
def test_refused_heads(status: int, version: str) -> None:
    with pytest.raises(Refused):
        check_head(status, version)


def test_where_the_body_ends() -> None:
    assert not body_is_sized([(b"server", b"x")], "1.1")
    assert body_is_sized([(b"content-length", b"0")], "1.0")
    assert body_is_sized([(b"transfer-encoding", b"Chunked")], "1.1")


@pytest.mark.parametrize("coding", [b"gzip", b"gzip, chunked", b"chunked, chunked", b""])
def test_refused_codings(coding: bytes) -> None:
    with pytest.raises(Refused):
        body_is_sized([(b"transfer-encoding", coding)], "1.1")


def test_a_head_is_taken_apart() -> None:
    head = read_head(b"HTTP/1.1 200 OK\r\nX-A:\t b:c \r\nEmpty:\r\nContent-Length: 2")
    assert head.status == 200
    assert head.headers == ((b"x-a", b"b:c"), (b"empty", b""), (b"content-length", b"2"))
    assert head.sized
    assert read_head(b"HTTP/1.0 200") == (200, (), False)
    assert read_head(b"HTTP/1.1 100 Continue\r\na: b") == (100, (), False)


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\r\nHTTP/1.1 200 OK",
        b"RTSP/1.1 200 OK",
        b"HTTP/1.1  200 OK",
        b"HTTP/2.0 200 OK",
        b"HTTP/1.1 200 OK" + b"\r\na: b" * (HEADERS + 1),
    ],
)
def test_refused_blocks(block: bytes) -> None:
    with pytest.raises(Refused):
        read_head(block)


class Listener:
    """What llhttp itself makes of a head."""

    def __init__(self) -> None:
        self.headers: list[Header] = []
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self.complete = True


LINES = st.one_of(
    st.sampled_from([b"a: b", b"A:b", b"c:", b"d:\t e \t", b"f: g:h", b"i: \xff", b" j", b"k :l"]),
    st.binary(max_size=12),
)


@given(st.lists(LINES, max_size=5), st.sampled_from([b"\r\n", b"\n", b"\r\n\r\n"]))
def test_cut_heads_are_what_the_parser_sees(lines: list[bytes], separator: bytes) -> None:
    raw = b"HTTP/1.1 200 OK\r\n" + separator.join(lines) + b"\r\n\r\n"
    listener: Any = Listener()
    parser: Any = httptools.HttpResponseParser(listener)
    try:
        parser.feed_data(raw)
    except httptools.HttpParserError:
        if not listener.complete:
            return
    if not listener.complete:
        return
    try:
        head = read_head(raw[: raw.index(b"\r\n\r\n")])
    except Refused:
        return
    assert list(head.headers) == listener.headers


OK: Header = (b":status", b"200")


def test_a_head_over_http2() -> None:
    head = read_http2_head((OK, (b"x-a", b"\tb "), (b"empty", b""), (b"x-b", b"\xc3\xa9")))
    assert head == (200, ((b"x-a", b"b"), (b"empty", b""), (b"x-b", b"\xc3\xa9")))


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ((b"x-a", b"b"),),
        ((b"x-a", b"b"), OK),
        (OK, OK),
        *[((b":status", status),) for status in (b"", b"20", b"2000", b"+20", b"101", b"600")],
        *[(OK, (name, b"b")) for name in (b"", b"X-A", b"x a", b"x\xe9", b":path", b"x:y", b"x\n")],
        *[(OK, (b"x-a", value)) for value in (b"a\nb", b"a\r", b"\x00", b"a\x0bb", b"\x7f")],
        *[(OK, (name, b"x")) for name in (b"connection", b"transfer-encoding", b"upgrade")],
        (OK, *[(b"x-a", b"b")] * (HEADERS + 1)),
        (OK, (b"x-a", b"b" * HEAD_BYTES)),
    ],
)
def test_refused_heads_over_http2(headers: tuple[Header, ...]) -> None:
    with pytest.raises(Refused):
        read_http2_head(headers)
