from __future__ import annotations

from backend.request_head import Http2RequestHead, RequestHead


def test_post_has_a_length_even_when_empty() -> None:
    raw = RequestHead(b"gpu:8000", b"Bearer k").build(b"POST", b"/v1/x", [(b"a", b"b")], b"")
    assert raw == (
        b"POST /v1/x HTTP/1.1\r\nhost: gpu:8000\r\naccept-encoding: identity\r\n"
        b"authorization: Bearer k\r\ncontent-length: 0\r\na: b\r\n\r\n"
    )


def test_body_follows_the_head() -> None:
    raw = RequestHead(b"gpu").build(b"POST", b"/", [], b"{}")
    assert raw.endswith(b"content-length: 2\r\n\r\n{}")
    assert b"authorization" not in raw


def test_get_without_a_body_has_no_length() -> None:
    raw = RequestHead(b"gpu").build(b"GET", b"/v1/models", [], b"")
    assert raw == b"GET /v1/models HTTP/1.1\r\nhost: gpu\r\naccept-encoding: identity\r\n\r\n"


def test_some_headers_are_those_of_every_request() -> None:
    more = ((b"x-data-parallel-rank", b"3"),)
    raw = RequestHead(b"gpu", more=more).build(b"POST", b"/", [], b"{}")
    assert b"\r\nx-data-parallel-rank: 3\r\n" in raw
    fields = Http2RequestHead(b"gpu", more=more).build(b"POST", b"/", [], b"{}")
    assert fields.count(more[0]) == 1


def test_http2_has_the_same_as_fields() -> None:
    head = Http2RequestHead(b"gpu", b"Bearer k", b"https")
    assert head.build(b"POST", b"/v1/x", [(b"a", b"b")], b"{}") == [
        (b":method", b"POST"),
        (b":path", b"/v1/x"),
        (b":scheme", b"https"),
        (b":authority", b"gpu"),
        (b"accept-encoding", b"identity"),
        (b"authorization", b"Bearer k"),
        (b"a", b"b"),
        (b"content-length", b"2"),
    ]


def test_http2_lengths() -> None:
    head = Http2RequestHead(b"gpu")
    assert (b"content-length", b"0") in head.build(b"POST", b"/", [], b"")
    assert b"content-length" not in dict(head.build(b"GET", b"/", [], b""))
    assert b"authorization" not in dict(head.build(b"GET", b"/", [], b""))
