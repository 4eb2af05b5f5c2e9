from __future__ import annotations

import inspect

import orjson
import pytest
from fakes import FakeExchange, request

from core import errors
from core.errors import BadRequest, GatewayError, RateLimited, Unauthenticated, Unavailable
from proxy.answers import answer_error, answer_json, error_event, retry_headers


def example(kind: type[GatewayError]) -> GatewayError:
    if kind is errors.UpstreamReset:
        return errors.UpstreamReset("No.", reused=False, answered=False)
    if kind is errors.UpstreamTimeout:
        return errors.UpstreamTimeout("No.", phase="idle")
    return kind("No.")


EVERY = [
    example(kind)
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, GatewayError)
]
NASTY = [
    "two\nlines",
    "CR\rCR\r\n\r\n",
    "data: [DONE]\n\ndata: [DONE]\n\n",
    "\u2028 \u2029 \u0085 \x0b \x0c \x1c \x1d \x1e \x00",
    'quotes " and \\ backslashes',
    "שלום \U0001f600",
    "lone \ud800 surrogate",
    "",
]


def test_every_class_of_error_is_tried() -> None:
    assert len(EVERY) > 15


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_the_shape_of_an_error(error: GatewayError) -> None:
    exchange = FakeExchange(request())
    answer_error(exchange, error, [(b"x-request-id", b"r")])
    assert exchange.status == error.status
    assert 400 <= exchange.status <= 599
    assert exchange.length == len(exchange.body)
    assert exchange.ended == "finished"
    assert exchange.headers[:2] == [
        (b"content-type", b"application/json"),
        (b"x-request-id", b"r"),
    ]
    assert orjson.loads(exchange.body) == {
        "error": {
            "message": "No.",
            "type": error.kind,
            "param": None,
            "code": error.reason,
            "request_id": exchange.id,
        }
    }
    assert all(isinstance(value, str) and value for value in (error.kind, error.reason))


def test_what_an_error_says_besides() -> None:
    exchange = FakeExchange(request())
    error = BadRequest("No.", code="c", param="n", retry_after_s=2.0, headers=[(b"a", b"b")])
    answer_error(exchange, error, [])
    said = orjson.loads(exchange.body)["error"]
    assert (said["code"], said["param"]) == ("c", "n")
    assert (b"a", b"b") in exchange.headers
    assert (b"retry-after", b"2") in exchange.headers


def test_401_names_the_scheme() -> None:
    exchange = FakeExchange(request())
    answer_error(exchange, Unauthenticated("No."), [])
    assert [value for name, value in exchange.headers if name == b"www-authenticate"] == [b"Bearer"]
    exchange = FakeExchange(request())
    answer_error(exchange, RateLimited("No."), [])
    assert not [name for name, _ in exchange.headers if name == b"www-authenticate"]


@pytest.mark.parametrize(
    ("seconds", "whole", "milliseconds"),
    [
        (0.0, b"1", b"1"),
        (-5.0, b"1", b"1"),
        (0.0001, b"1", b"1"),
        (0.25, b"1", b"250"),
        (1.0, b"1", b"1000"),
        (1.0001, b"2", b"1001"),
        (59.2, b"60", b"59200"),
        (60.0, b"60", b"60000"),
    ],
)
def test_retry_after_is_rounded_up(seconds: float, whole: bytes, milliseconds: bytes) -> None:
    assert retry_headers(seconds) == [(b"retry-after", whole), (b"retry-after-ms", milliseconds)]


def test_a_long_wait_is_not_to_be_slept_through() -> None:
    assert (b"x-should-retry", b"false") in retry_headers(60.1)
    assert retry_headers(None) == []


@pytest.mark.parametrize("message", NASTY)
@pytest.mark.parametrize("mid_event", [False, True])
def test_an_error_event_is_one_line_whatever_it_says(message: str, mid_event: bool) -> None:
    event = error_event(Unavailable(message), "r", mid_event=mid_event)
    assert event.startswith(b"\n\n") is mid_event
    lines = event.decode("ascii").strip("\n").splitlines()
    assert len(lines) == 1
    assert event.endswith(b"}\n\n")
    assert lines[0].startswith("data: {")
    document = orjson.loads(lines[0][6:].replace("\\ud800", "?"))
    assert document["error"]["message"] == message.replace("\ud800", "?")
    assert document["error"]["request_id"] == "r"


def test_answer_json() -> None:
    exchange = FakeExchange(request())
    answer_json(exchange, {"a": "\n"}, [(b"x", b"y")])
    assert (exchange.status, exchange.body, exchange.length) == (200, b'{"a":"\\n"}', 10)
    assert exchange.headers == [(b"content-type", b"application/json"), (b"x", b"y")]
    assert exchange.ended == "finished"
