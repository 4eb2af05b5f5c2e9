from __future__ import annotations

from collections.abc import Callable
from typing import cast

import orjson
import pytest

from core.errors import GatewayError, UpstreamError
from proxy.relay import Relay
from proxy.whole_body import WholeBody

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
MEBIBYTE = 1024 * 1024


class FakeRelay:
    """What the body does to its relay."""

    def __init__(self, status: int = 200, *, any_answer: bool = False) -> None:
        self.status = status
        self.committed = False
        self.seeking = False
        self.told: list[str] = []
        self.written: list[bytes] = []
        self.length: int | None = -1
        self.error: GatewayError | None = None
        self.body = WholeBody(cast(Relay, self), any_answer=any_answer)
        self._push: Callable[[bytes], None] = self.body.push

    def begin(self) -> None:
        self.told.append("begin")

    def start(self, length: int | None) -> None:
        self.told.append("start")
        self.committed = True
        self.length = length

    def use(self, push: Callable[[bytes], None]) -> None:
        self._push = push

    def write(self, data: bytes) -> None:
        assert self.committed
        self.written.append(data)

    def deliver(self, data: bytes) -> None:
        self.told.append("complete")
        self.written += [data] if data else []

    def fail(self, error: GatewayError) -> None:
        self.told.append("fail")
        self.error = error

    def take(self, *pieces: bytes) -> FakeRelay:
        for piece in pieces:
            self._push(piece)
        self.body.end()
        return self


def document(size: int = 0, **fields: object) -> bytes:
    return orjson.dumps({"choices": [{"text": "a" * size}], **fields})


def test_an_answer_is_sent_in_one_piece() -> None:
    data = document(usage=USAGE)
    relay = FakeRelay().take(data[:10], data[10:11], data[11:])
    assert relay.told == ["begin", "start", "complete"]
    assert relay.written == [data]
    assert relay.length == len(data)
    assert relay.body.usage == USAGE


def test_a_very_large_answer_flows() -> None:
    data = document(9 * MEBIBYTE, usage=USAGE)
    pieces = [data[start : start + MEBIBYTE] for start in range(0, len(data), MEBIBYTE)]
    relay = FakeRelay()
    for piece in pieces[:5]:
        relay._push(piece)
    assert relay.told == ["begin", "start"]
    assert relay.written == [b"".join(pieces[:5])]
    relay.take(*pieces[5:])
    assert relay.told == ["begin", "start", "complete"]
    assert relay.length is None
    assert b"".join(relay.written) == data
    assert relay.body.usage == USAGE


@pytest.mark.parametrize("status", [400, 404, 413, 422, 429, 500])
def test_the_replicas_refusal_is_the_answer(status: int) -> None:
    data = b'{"error":{"message":"no"}}'
    relay = FakeRelay(status).take(data)
    assert relay.told == ["start", "complete"]
    assert relay.written == [data]


@pytest.mark.parametrize(
    ("status", "body", "message", "code"),
    [
        (503, b'{"error":{"message":"busy"}}', "busy", "upstream_overloaded"),
        (503, b"", "The replica answered 503.", "upstream_overloaded"),
        (503, b'{"error":"busy"}', "The replica answered 503.", "upstream_overloaded"),
        (
            500,
            b'{"error":{"message":"cannot schedule new futures after shutdown"}}',
            "The replica is shutting down.",
            "upstream_overloaded",
        ),
        (502, b"<html>", "The replica answered 502.", "upstream_error"),
        (502, b"[1]", "The replica answered 502.", "upstream_error"),
        (502, b'{"error":{"message":5}}', "The replica answered 502.", "upstream_error"),
    ],
)
def test_a_replica_that_cannot_is_a_failure(
    status: int, body: bytes, message: str, code: str
) -> None:
    relay = FakeRelay(status).take(body)
    assert relay.told == ["fail"]
    assert relay.written == []
    error = relay.error
    assert isinstance(error, UpstreamError)
    status = 503 if status == 500 else status  # of one that drains
    assert (error.status, error.message, error.reason) == (status, message, code)
    assert error.retryable
    assert error.retry_after_s == (1.0 if status == 503 else None)


@pytest.mark.parametrize("status", [401, 403])
def test_a_replica_that_refuses_our_key_is_not_the_clients_fault(status: int) -> None:
    relay = FakeRelay(status).take(b'{"error":"Unauthorized"}')
    assert relay.told == ["fail"]
    assert relay.error is not None
    assert (relay.error.status, relay.error.reason) == (502, "upstream_auth")


def test_usage_may_come_first() -> None:
    data = orjson.dumps({"usage": USAGE, "choices": [{"text": "a" * 100_000}]})
    assert FakeRelay().take(data).body.usage == USAGE


@pytest.mark.parametrize(("seeking", "told"), [(True, "fail"), (False, "complete")])
def test_a_404_of_who_was_only_asked_whether_it_has_it_is_no_answer(
    seeking: bool, told: str
) -> None:
    relay = FakeRelay(404)
    relay.seeking = seeking
    relay.take(b'{"error": {"message": "Not here."}}')
    assert relay.told[-1] == told


def test_a_success_with_nothing_in_it_is_a_failure() -> None:
    relay = FakeRelay().take()
    assert isinstance(relay.error, UpstreamError)
    assert relay.told == ["fail"]


def test_an_opened_answer_may_be_empty() -> None:
    relay = FakeRelay(any_answer=True).take()
    assert relay.told == ["begin", "start", "complete"]
    assert (relay.length, relay.written, relay.body.usage) == (0, [], None)


@pytest.mark.parametrize("status", [400, 404])
def test_a_refusal_may_be_empty(status: int) -> None:
    assert FakeRelay(status).take().told == ["start", "complete"]
