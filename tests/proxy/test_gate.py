from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import (
    BadRequest,
    ExpectationFailed,
    GatewayError,
    HeadersTooLarge,
    MethodNotAllowed,
    PayloadTooLarge,
    UnsupportedMediaType,
)
from core.exchange import Header
from proxy import gate
from proxy.config import ListenLimits

LIMITS = ListenLimits(max_header_bytes=1024, max_headers=10, max_body_bytes=1024)
HOST: Header = (b"host", b"a")


def framing(*headers: Header, version: str = "1.1") -> gate.Framing:
    return gate.check_head(version, [HOST, *headers], LIMITS)


def test_how_a_body_ends() -> None:
    assert framing() == gate.Framing(0, expects_continue=False, keep_alive=True)
    assert framing((b"content-length", b"12")).length == 12
    assert framing((b"content-length", b"000012")).length == 12
    assert framing((b"transfer-encoding", b"Chunked")).length is None


def test_who_waits_for_100() -> None:
    expect = (b"expect", b"100-CONTINUE")
    assert framing(expect).expects_continue
    assert not framing(expect, version="1.0").expects_continue


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ([(b"content-length", b"1025")], PayloadTooLarge),
        ([(b"content-length", b"9" * 18)], PayloadTooLarge),
        ([(b"content-length", b"9" * 19)], BadRequest),
        ([(b"content-length", b"")], BadRequest),
        ([(b"content-length", "\u0661".encode())], BadRequest),
        ([(b"content-length", b"1\n")], BadRequest),
        ([(b"transfer-encoding", b"gzip, chunked")], BadRequest),
        ([(b"transfer-encoding", b"chunked, chunked")], BadRequest),
        ([(b"transfer-encoding", b"")], BadRequest),
        ([(b"transfer-encoding", b"chunked"), (b"content-length", b"0")], BadRequest),
        ([(b"host", b"a")], BadRequest),
        ([(b"content-type", b"a"), (b"content-type", b"a")], BadRequest),
        ([(b"x_a", b"")], BadRequest),
        ([(b"expect", b"")], ExpectationFailed),
        ([(b"expect", b"100-continue, x")], ExpectationFailed),
        ([(b"content-encoding", b"gzip")], UnsupportedMediaType),
        ([(b"content-encoding", b"")], UnsupportedMediaType),
        ([(b"x", b"")] * 10, HeadersTooLarge),
    ],
)
def test_fields_that_are_refused(headers: list[Header], error: type[GatewayError]) -> None:
    with pytest.raises(GatewayError) as caught:
        framing(*headers)
    assert type(caught.value) is error


def test_fields_that_pass() -> None:
    framing((b"content-encoding", b"Identity"), (b"x", b""), (b"x", b""), (b"cookie", b"a_b=c"))


def test_http_1_0_needs_no_host_and_takes_no_chunks() -> None:
    assert gate.check_head("1.0", [], LIMITS).length == 0
    with pytest.raises(BadRequest, match="Host"):
        gate.check_head("1.1", [], LIMITS)
    with pytest.raises(BadRequest, match=r"HTTP/1\.1"):
        framing((b"transfer-encoding", b"chunked"), version="1.0")
    with pytest.raises(BadRequest, match="Host"):
        gate.check_head("1.0", [(b"host", b"a/b")], LIMITS)


@pytest.mark.parametrize(
    ("value", "version", "stays"),
    [
        (None, "1.1", True),
        (None, "1.0", False),
        (b"close", "1.1", False),
        (b"Close", "1.1", False),
        (b"upgrade, close", "1.1", False),
        (b"keep-alive, close", "1.0", False),
        (b"closed", "1.1", True),
        (b"", "1.1", True),
        (b"keep-alive", "1.1", True),
        (b"x,\tKeep-Alive", "1.0", True),
        (b"keep", "1.0", False),
    ],
)
def test_what_becomes_of_the_connection(value: bytes | None, version: str, stays: bool) -> None:
    headers = [] if value is None else [(b"connection", value)]
    assert framing(*headers, version=version).keep_alive is stays


def test_connection_may_be_given_more_than_once() -> None:
    assert not framing((b"connection", b"x"), (b"connection", b"close")).keep_alive


@pytest.mark.parametrize("method", sorted(gate.METHODS))
def test_methods(method: str) -> None:
    gate.check_method(method)
    for other in (method.lower(), method + "S", ""):
        with pytest.raises(MethodNotAllowed):
            gate.check_method(other)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1/chat/completions",
        "/v1/models/a.b",
        "/v1/models/a%2Fb%2fc",
        "/a/.b",
        "/a/b..",
        "/...",
        "/a%20b",
        "/~a;b=c",
    ],
)
def test_paths_that_pass(path: str) -> None:
    gate.check_path(path)


@pytest.mark.parametrize(
    "path",
    [
        "//",
        "/a//b",
        "/.",
        "/..",
        "/./",
        "/a/../b",
        "/%2e",
        "/%2E%2e/",
        "/a%2fb",
        "/a%5Cb",
        "/%00",
        "/v1/models%2Fa",
        "/v1/models/a%2F..%2Fb",
        "/v1/models/%2Fa",
        "/v1/models/a%2F%2Fb",
        "/v1/models/a%5Cb",
    ],
)
def test_paths_that_are_refused(path: str) -> None:
    with pytest.raises(BadRequest):
        gate.check_path(path)


@given(head=st.binary(max_size=120))
def test_a_raw_head_passes_or_is_a_bad_request(head: bytes) -> None:
    try:
        gate.parse_head(b"GET / HTTP/1.1\r\nHost: a\r\n" + head + b"\r\n\r\n")
    except BadRequest:
        return
    assert b"\r" not in head.replace(b"\r\n", b"")
    assert b"\n" not in head.replace(b"\r\n", b"")
    assert not any((byte < 32 and byte not in (9, 10, 13)) or byte == 127 for byte in head)
    assert not head.startswith((b" ", b"\t"))


GOOD = b"POST /v1/x?a HTTP/1.1\r\nHost: a\r\nX: b\r\n\r\n"


def test_no_part_of_a_good_head_is_refused_early() -> None:
    for end in range(len(GOOD)):
        gate.check_partial_head(GOOD[:end], LIMITS)
    assert gate.parse_head(GOOD) == ("POST", "/v1/x?a", "1.1", [(b"host", b"a"), (b"x", b"b")])


@pytest.mark.parametrize(
    "part", [b"GET /\r\n", b"GET / HTTP/2.0\r\n", b"\n", b"GET / HTTP/1.1\r\nHost: a\n"]
)
def test_what_cannot_become_a_good_head_is_refused_early(part: bytes) -> None:
    with pytest.raises(BadRequest):
        gate.check_partial_head(part, LIMITS)


def test_a_head_may_be_as_large_as_the_limit_and_no_larger() -> None:
    gate.check_partial_head(b"a" * 1024, LIMITS)
    with pytest.raises(HeadersTooLarge):
        gate.check_partial_head(b"a" * 1025, LIMITS)
