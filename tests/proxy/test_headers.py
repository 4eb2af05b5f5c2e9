from __future__ import annotations

import pytest
from fakes import request

from core.exchange import Header
from proxy.headers import header_value, read_response, upstream_headers

TRACE = (b"traceparent", b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01")
STATE = (b"tracestate", b"a=b")
OURS: list[Header] = [(b"content-type", b"application/json"), (b"x-request-id", b"id")]


def test_only_what_is_named_goes_upstream() -> None:
    theirs: list[Header] = [
        (b"host", b"a"),
        (b"authorization", b"Bearer secret"),
        (b"cookie", b"secret"),
        (b"x-request-id", b"theirs"),
        (b"x-forwarded-for", b"1.2.3.4"),
        (b"content-type", b"text/plain"),
        (b"connection", b"x-request-id"),
        (b"transfer-encoding", b"chunked"),
        (b"upgrade", b"h2c"),
        (b"expect", b"100-continue"),
        STATE,
    ]
    assert upstream_headers(request(headers=theirs), "id") == OURS


def test_traces_go_upstream() -> None:
    assert upstream_headers(request(headers=[TRACE, STATE]), "id") == [*OURS, TRACE, STATE]
    assert upstream_headers(request(headers=[TRACE]), "id") == [*OURS, TRACE]
    long = (b"tracestate", b"a" * 513)
    assert upstream_headers(request(headers=[TRACE, long]), "id") == [*OURS, TRACE]


@pytest.mark.parametrize(
    "value", [b"", b"00", TRACE[1].upper(), TRACE[1] + b"\n", TRACE[1] + b"-x", b"x" + TRACE[1]]
)
def test_a_trace_that_is_none_stays_here(value: bytes) -> None:
    assert upstream_headers(request(headers=[(b"traceparent", value), STATE]), "id") == OURS


def test_only_what_is_named_goes_downstream() -> None:
    theirs: list[Header] = [
        (b"content-type", b"text/event-stream"),
        (b"retry-after", b"1"),
        (b"server", b"uvicorn"),
        (b"date", b"now"),
        (b"content-length", b"5"),
        (b"transfer-encoding", b"chunked"),
        (b"connection", b"close"),
        (b"set-cookie", b"a"),
        (b"x-request-id", b"theirs"),
        (b"www-authenticate", b"Bearer"),
        (b"content-encoding", b"gzip"),
    ]
    response = read_response(tuple(theirs))
    assert (response.coding, response.content_type) == (b"gzip", b"text/event-stream")
    assert response.passed == (
        (b"content-type", b"text/event-stream"),
        (b"retry-after", b"1"),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),
    )


def test_header_value() -> None:
    headers = [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]
    assert header_value(headers, b"a") == b"1"
    assert header_value(headers, b"c") == b""
