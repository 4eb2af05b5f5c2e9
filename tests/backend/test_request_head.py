from __future__ import annotations

from backend.request_head import RequestHead


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
