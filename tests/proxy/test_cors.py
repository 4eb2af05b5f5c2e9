from __future__ import annotations

import pytest
from fakes import request

from core.exchange import Header
from proxy.cors import Cors

APP = (b"origin", b"https://app.example")
OTHER = (b"origin", b"https://evil.example")
ASK = (b"access-control-request-method", b"POST")
CORS = Cors(["https://app.example", "http://localhost:3000"])


def preflight(cors: Cors, *headers: Header) -> dict[bytes, bytes] | None:
    answer = cors.preflight(request("OPTIONS", headers=headers))
    return None if answer is None else dict(answer)


def test_an_allowed_origin_is_named() -> None:
    headers = dict(CORS.headers(request(headers=[APP])))
    assert headers[b"access-control-allow-origin"] == APP[1]
    assert headers[b"vary"] == b"origin"
    assert b"x-request-id" in headers[b"access-control-expose-headers"]
    assert b"access-control-allow-credentials" not in headers


@pytest.mark.parametrize(
    "headers",
    [[], [OTHER], [(b"origin", b"null")], [(b"origin", b"https://app.example.evil")]],
)
def test_other_origins_hear_nothing(headers: list[Header]) -> None:
    assert CORS.headers(request(headers=headers)) == []
    assert preflight(CORS, *headers, ASK) is None


def test_without_origins_there_is_no_cors() -> None:
    assert Cors([]).headers(request(headers=[APP])) == []
    assert preflight(Cors([]), APP, ASK) is None


def test_every_origin() -> None:
    headers = dict(Cors(["*"]).headers(request(headers=[OTHER])))
    assert headers[b"access-control-allow-origin"] == b"*"
    assert Cors(["*"]).headers(request()) == []


def test_a_preflight() -> None:
    headers = preflight(CORS, APP, ASK)
    assert headers is not None
    assert headers[b"access-control-allow-origin"] == APP[1]
    assert headers[b"access-control-allow-methods"] == b"GET, POST, OPTIONS"
    assert headers[b"access-control-allow-headers"] == b"authorization, content-type"
    assert int(headers[b"access-control-max-age"]) > 0


def test_options_alone_is_no_preflight() -> None:
    assert preflight(CORS, APP) is None


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        (b"Authorization,X-Stainless-OS", b"authorization, x-stainless-os"),
        (b" a , b ", b"a, b"),
        (b"*", b"authorization, content-type"),
        (b"a\r\nb: c", b"authorization, content-type"),
        (b"a b", b"authorization, content-type"),
        (b"a,,b", b"authorization, content-type"),
        (b"-", b"authorization, content-type"),
        (b"", b"authorization, content-type"),
        (b"a" * 1025, b"authorization, content-type"),
    ],
)
def test_which_headers_may_be_sent(asked: bytes, allowed: bytes) -> None:
    headers = preflight(CORS, APP, ASK, (b"access-control-request-headers", asked))
    assert headers is not None
    assert headers[b"access-control-allow-headers"] == allowed
