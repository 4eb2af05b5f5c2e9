from __future__ import annotations

import orjson
import pytest

from core.errors import Unavailable
from proxy.surfaces.responses_shape import RESPONSES, error_event, error_in, usage_of


def test_the_last_event_is_an_error_by_its_type_and_by_its_object() -> None:
    event = error_event(Unavailable("No."), "id")
    name, data, *_ = event.split(b"\n")
    assert name == b"event: error"
    document = orjson.loads(data.removeprefix(b"data: "))
    assert document["type"] == "error"
    assert document["message"] == document["error"]["message"] == "No."


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b'{"error":{"message":"m","code":503}}', 503),
        (b'{"type":"error","code":"rate_limit_exceeded","message":"m"}', 429),
        (
            b'{"type":"response.failed","response":{"error":{"code":"server_error"}}}',
            "server_error",
        ),
    ],
)
def test_a_replica_has_three_ways_to_fail(data: bytes, code: object) -> None:
    error = error_in(data)
    assert error is not None
    assert error["code"] == code


@pytest.mark.parametrize(
    "data",
    [
        b'{"type":"response.created","response":{"error":null}}',
        b'{"type":"response.output_text.delta","delta":"\\"error\\""}',
        b"[DONE]",
    ],
)
def test_other_events_are_no_errors(data: bytes) -> None:
    assert error_in(data) is None


def test_usage_is_said_in_other_words() -> None:
    given = {"input_tokens": 9, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 4}}
    assert usage_of(given) == {
        "prompt_tokens": 9,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


def test_what_comes_before_the_replica_accepts_is_preamble() -> None:
    assert RESPONSES.preamble is not None
    assert RESPONSES.preamble(b'{"response":{},"type":"response.created"}')
    assert not RESPONSES.preamble(b'{"type":"response.output_item.added"}')
