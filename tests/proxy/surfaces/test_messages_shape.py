from __future__ import annotations

from typing import Any

import orjson
import pytest

from core.errors import BadRequest, GatewayError, RateLimited, Unavailable, UpstreamTimeout
from proxy.surfaces.messages_shape import MESSAGES, error_event, error_in, error_object, usage_of


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BadRequest("No."), "invalid_request_error"),
        (RateLimited("No."), "rate_limit_error"),
        (Unavailable("No."), "overloaded_error"),
        (UpstreamTimeout("No.", phase="idle"), "timeout_error"),
        (GatewayError("No."), "api_error"),
    ],
)
def test_the_type_follows_from_the_status(error: GatewayError, kind: str) -> None:
    whole = error_object(error, "id")
    assert whole["type"] == "error"
    assert whole["error"]["type"] == kind
    assert whole["error"]["message"] == "No."
    assert whole["request_id"] == "id"


def test_the_last_event_has_the_name_that_the_sdk_raises_for() -> None:
    event = error_event(BadRequest("No."), "id")
    name, data, *rest = event.split(b"\n")
    assert name == b"event: error"
    assert orjson.loads(data.removeprefix(b"data: "))["error"]["message"] == "No."
    assert rest == [b"", b""]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b'{"type":"error","error":{"type":"overloaded_error","message":"m"}}', 503),
        (b'{"type":"error","error":{"type":"overloaded_error","message":"m","code":529}}', 529),
        (b'{"error":{"message":"m","code":500}}', 500),
        (b'{"type":"error","error":{"type":"api_error","message":"m"}}', None),
    ],
)
def test_an_error_event_of_the_replica_has_a_status(data: bytes, code: int | None) -> None:
    error = error_in(data)
    assert error is not None
    assert error.get("code") == code


def test_other_events_are_no_errors() -> None:
    assert error_in(b'{"type":"content_block_delta","delta":{"text":"\\"error\\""}}') is None


@pytest.mark.parametrize(
    ("usage", "prompt", "cached"),
    [
        ({"input_tokens": 9, "output_tokens": 3}, 9, None),
        ({"input_tokens": 9, "output_tokens": 3, "cache_read_input_tokens": 64}, 73, 64),
        ({"input_tokens": 9, "output_tokens": 3, "cache_creation_input_tokens": 5}, 14, None),
    ],
)
def test_usage_counts_the_whole_prompt(
    usage: dict[str, Any], prompt: int, cached: int | None
) -> None:
    assert usage_of(usage) == {
        "prompt_tokens": prompt,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def test_what_comes_before_the_replica_accepts_is_preamble() -> None:
    assert MESSAGES.preamble is not None
    assert MESSAGES.preamble(b'{"type":"message_start","message":{}}')
    assert MESSAGES.preamble(b'{"type":"ping"}')
    assert not MESSAGES.preamble(b'{"type":"content_block_start"}')
    assert not MESSAGES.preamble(b"[DONE]")
