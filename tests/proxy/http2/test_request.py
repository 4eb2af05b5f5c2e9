from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import BadRequest, GatewayError, PayloadTooLarge
from core.exchange import Header
from proxy.config import ListenLimits
from proxy.http2.request import Head, HeadReader, IncomingRequest

LIMITS = ListenLimits(max_header_bytes=2048, max_headers=20, max_body_bytes=2000)
LINE: list[Header] = [
    (b":method", b"POST"),
    (b":scheme", b"https"),
    (b":authority", b"a:80"),
    (b":path", b"/v1/x?a=b&c"),
]
AFTER: list[Header] = [(b"authorization", b"Bearer t"), (b"x-empty", b""), (b"x", b"b c\t\xff")]


def read(*fields: Header, line: Sequence[Header] = LINE) -> Head:
    return HeadReader(LIMITS).read((*line, *fields))


def replaced(name: bytes, value: bytes | None) -> list[Header]:
    kept = [(key, value if key == name else old) for key, old in LINE]
    return [(key, new) for key, new in kept if new is not None]


def test_a_head_becomes_what_http1_would_say() -> None:
    head = read(*AFTER, (b"content-length", b"2"), (b"te", b"trailers"))
    assert (head.method, head.path, head.query, head.length) == ("POST", "/v1/x", "a=b&c", 2)
    assert head.headers == [(b"host", b"a:80"), *AFTER, (b"te", b"trailers")]


def test_a_length_need_not_be_announced() -> None:
    assert read().length is None


def test_host_stands_in_for_authority_and_may_repeat_it() -> None:
    assert read((b"host", b"a"), line=replaced(b":authority", None)).headers == [(b"host", b"a")]
    assert read((b"host", b"a:80")).headers == [(b"host", b"a:80")]


REFUSED: dict[str, tuple[Sequence[Header], int]] = {
    "no method": (replaced(b":method", None), 400),
    "lower-case method": (replaced(b":method", b"post"), 400),
    "method with a space": (replaced(b":method", b"GE T"), 400),
    "method and more": (replaced(b":method", b"GET /x HTTP/1.1\r\n"), 400),
    "PUT": (replaced(b":method", b"PUT"), 405),
    "CONNECT with a path": (replaced(b":method", b"CONNECT"), 405),
    "CONNECT": ([(b":method", b"CONNECT"), (b":authority", b"a:80")], 400),
    "no path": (replaced(b":path", None), 400),
    "empty path": (replaced(b":path", b""), 400),
    "asterisk": (replaced(b":path", b"*"), 400),
    "path with a space": (replaced(b":path", b"/a b"), 400),
    "path without a slash": (replaced(b":path", b"a"), 400),
    "absolute path": (replaced(b":path", b"http://a/"), 400),
    "fragment": (replaced(b":path", b"/a#b"), 400),
    "backslash": (replaced(b":path", b"/a\\b"), 400),
    "path and line end": (replaced(b":path", b"/a\r\nx: y"), 400),
    "path above ASCII": (replaced(b":path", b"/\xc3\xa9"), 400),
    "dot segments": (replaced(b":path", b"/a/../b"), 400),
    "encoded slash": (replaced(b":path", b"/a%2fb"), 400),
    "no scheme": (replaced(b":scheme", None), 400),
    "another scheme": (replaced(b":scheme", b"ftp"), 400),
    "no authority": (replaced(b":authority", None), 400),
    "empty authority": (replaced(b":authority", b""), 400),
    "userinfo": (replaced(b":authority", b"u@a"), 400),
    "authority with a path": (replaced(b":authority", b"a/b"), 400),
    "Host differs": ([*LINE, (b"host", b"b")], 400),
    "two Hosts": ([*LINE, (b"host", b"a:80"), (b"host", b"a:80")], 400),
    "two Hosts alone": ([*replaced(b":authority", None), (b"host", b"a"), (b"host", b"a")], 400),
    "pseudo-header twice": ([*LINE, LINE[0]], 400),
    "pseudo-header after a field": ([*LINE[:3], (b"a", b"b"), LINE[3]], 400),
    "unknown pseudo-header": ([*LINE, (b":protocol", b"websocket")], 400),
    "pseudo-header of an answer": ([*LINE, (b":status", b"200")], 400),
    "connection": ([*LINE, (b"connection", b"close")], 400),
    "keep-alive": ([*LINE, (b"keep-alive", b"5")], 400),
    "proxy-connection": ([*LINE, (b"proxy-connection", b"close")], 400),
    "upgrade": ([*LINE, (b"upgrade", b"h2c")], 400),
    "transfer-encoding": ([*LINE, (b"transfer-encoding", b"chunked")], 400),
    "te": ([*LINE, (b"te", b"gzip")], 400),
    "upper-case name": ([*LINE, (b"A", b"b")], 400),
    "empty name": ([*LINE, (b"", b"b")], 400),
    "name with a colon": ([*LINE, (b"a:b", b"c")], 400),
    "name with a space": ([*LINE, (b"a b", b"c")], 400),
    "name above ASCII": ([*LINE, (b"\xe9", b"c")], 400),
    "name with NUL": ([*LINE, (b"a\0b", b"c")], 400),
    "underscore": ([*LINE, (b"a_b", b"c")], 400),
    "line end in a value": ([*LINE, (b"a", b"b\r\nc: d")], 400),
    "LF in a value": ([*LINE, (b"a", b"b\nc")], 400),
    "NUL in a value": ([*LINE, (b"a", b"b\0c\0d")], 400),
    "space before a value": ([*LINE, (b"a", b" b")], 400),
    "tab behind a value": ([*LINE, (b"a", b"b\t")], 400),
    "content-length twice": ([*LINE, (b"content-length", b"2"), (b"content-length", b"2")], 400),
    "content-length +2": ([*LINE, (b"content-length", b"+2")], 400),
    "content-length empty": ([*LINE, (b"content-length", b"")], 400),
    "content-length too large": ([*LINE, (b"content-length", b"2001")], 413),
    "content-encoding": ([*LINE, (b"content-encoding", b"gzip")], 415),
    "expect": ([*LINE, (b"expect", b"200-ok")], 417),
    "authorization twice": ([*LINE, AFTER[0], AFTER[0]], 400),
    "many fields": ([*LINE, *((b"a", b"b"),) * 21], 431),
    "many bytes": ([*LINE, (b"a", b"b" * 2048)], 431),
}


@pytest.mark.parametrize(("fields", "status"), REFUSED.values(), ids=REFUSED.keys())
def test_a_doubtful_head_is_refused(fields: Sequence[Header], status: int) -> None:
    reader = HeadReader(LIMITS)
    for _ in range(2):
        with pytest.raises(GatewayError) as refusal:
            reader.read(fields)
        assert refusal.value.status == status


def test_a_repeated_head_is_as_good_as_the_first() -> None:
    reader = HeadReader(LIMITS)
    fields = (*LINE, *AFTER, (b"content-length", b"2"))
    first = reader.read(fields)
    assert reader.read(fields) == first
    assert reader.read((*fields[:-1], (b"content-length", b"30"))) == first._replace(length=30)


@pytest.mark.parametrize("length", [b"2001", b"-1", b"x", b""])
def test_a_repeated_head_with_a_bad_length_is_refused(length: bytes) -> None:
    reader = HeadReader(LIMITS)
    fields = (*LINE, *AFTER, (b"content-length", b"2"))
    reader.read(fields)
    with pytest.raises(BadRequest):
        reader.read((*fields[:-1], (b"content-length", length)))


@pytest.mark.parametrize("at", range(7))
def test_a_head_that_differs_anywhere_is_judged_anew(at: int) -> None:
    reader = HeadReader(LIMITS)
    fields = (*LINE, *AFTER)
    reader.read(fields)
    bad = (*fields[:at], (fields[at][0], b"\0"), *fields[at + 1 :])
    with pytest.raises(BadRequest):
        reader.read(bad)
    renamed = (*fields[:at], (b"content-length", b"5"), *fields[at + 1 :])
    if at < 4:
        with pytest.raises(BadRequest):
            reader.read(renamed)
    else:
        assert reader.read(renamed).length == 5


FIELDS = [*LINE, *AFTER[:1], (b"content-length", b"2"), (b"content-length", b"30")]


@given(heads=st.lists(st.lists(st.sampled_from(FIELDS), max_size=7), max_size=5))
def test_a_connection_reads_a_head_as_if_it_were_its_first(heads: list[list[Header]]) -> None:
    reader = HeadReader(LIMITS)
    for fields in [FIELDS[:-1], FIELDS[:-2], *heads, FIELDS[:-1]]:
        assert told(reader, fields) == told(HeadReader(LIMITS), fields)


def told(reader: HeadReader, fields: list[Header]) -> Head | str:
    try:
        return reader.read(fields)
    except GatewayError as error:
        return str(error)


def test_a_body_is_put_together() -> None:
    incoming = IncomingRequest(read(*AFTER), LIMITS, 100.0)
    incoming.add(b'{"a"')
    incoming.add(b":1}")
    request = incoming.complete("192.0.2.1", 101.0)
    assert (request.body, request.version, request.peer) == (b'{"a":1}', "2", "192.0.2.1")
    assert (request.received_at, request.complete_at) == (100.0, 101.0)
    assert request.header(b"host") == b"a:80"


def test_a_body_may_be_too_large_or_not_as_announced() -> None:
    incoming = IncomingRequest(read(), LIMITS, 100.0)
    incoming.add(b"x" * 2000)
    with pytest.raises(PayloadTooLarge):
        incoming.add(b"x")
    announced = IncomingRequest(read((b"content-length", b"3")), LIMITS, 100.0)
    announced.add(b"xx")
    with pytest.raises(BadRequest):
        announced.complete("", 101.0)


@pytest.mark.parametrize(
    ("agent", "fragile"),
    [
        (b"OpenAI/Python 3.57.0", True),
        (b"AsyncOpenAI/Python 3.57.0", True),
        (b"python-httpx/0.28", True),
        (b"curl/8.5.0", False),
        (b"Go-http-client/2.0", False),
    ],
)
def test_fragile_clients_are_known_by_their_name(agent: bytes, fragile: bool) -> None:
    assert read((b"user-agent", agent)).fragile is fragile
    assert not read().fragile
