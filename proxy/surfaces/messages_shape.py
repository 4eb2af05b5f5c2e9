"""Anthropic's shape: typed events, errors as `{"type": "error", "error": {...}}`. Pure."""

from __future__ import annotations

from functools import partial
from typing import Any

from core.errors import GatewayError
from proxy.scanner import error_in as openai_error_in
from proxy.surfaces.openai import one_line
from proxy.surfaces.shape import Shape
from proxy.surfaces.typed_events import Grammar, TypedScanner, event_type

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_CODES = {  # the last ones are vLLM's
    "overloaded_error": 503,
    "rate_limit_error": 429,
    "invalid_request_error": 400,
    "Service Unavailable": 503,
    "BadRequestError": 400,
    "InternalServerError": 500,
}
_PREAMBLE = frozenset({"message_start", "ping"})


def error_object(error: GatewayError, request_id: str) -> dict[str, Any]:
    """`code` and what follows are ours besides: Anthropic's clients read `type` and `message`."""
    other = "invalid_request_error" if 400 <= error.status < 500 else "api_error"
    return {
        "type": "error",
        "error": {
            "type": _KINDS.get(error.status, other),
            "message": error.message,
            "code": error.reason,
            **({} if error.param is None else {"param": error.param}),
            **error.details,
        },
        "request_id": request_id,
    }


def error_event(error: GatewayError, request_id: str) -> bytes:
    """The SDK raises for `event: error` alone, whatever the data says."""
    return b"event: error\ndata: %b\n\n" % one_line(error_object(error, request_id))


def error_in(data: bytes) -> dict[str, Any] | None:
    error = openai_error_in(data)
    return None if error is None else _with_code(error)


def _error_of(document: dict[str, Any]) -> dict[str, Any] | None:
    error = document.get("error")
    if not error:
        return None
    return _with_code(error) if isinstance(error, dict) else {"message": str(error)}


def _with_code(error: dict[str, Any]) -> dict[str, Any]:
    """With the status that its type stands for, where it names none."""
    code = _CODES.get(str(error.get("type")))
    return error if code is None or "code" in error else {**error, "code": code}


def usage_of(usage: dict[str, Any] | None) -> dict[str, Any] | None:
    """`input_tokens` leave out what was read from the cache or written to it."""
    if usage is None:
        return None
    given = usage.get("input_tokens")
    cached = _count(usage.get("cache_read_input_tokens"))
    written = _count(usage.get("cache_creation_input_tokens"))
    return {
        "prompt_tokens": given + cached + written if isinstance(given, int) else None,
        "completion_tokens": usage.get("output_tokens"),
        "prompt_tokens_details": {"cached_tokens": usage.get("cache_read_input_tokens")},
    }


def _count(value: object) -> int:
    return value if type(value) is int else 0


def _usage_in(document: dict[str, Any], before: dict[str, Any] | None) -> dict[str, Any] | None:
    """`message_start` tells of the prompt, `message_delta` of the whole."""
    message = document.get("message")
    starting = isinstance(message, dict)
    usage = (message if isinstance(message, dict) else document).get("usage")
    if not isinstance(usage, dict):
        return before
    found = usage_of({**usage, "output_tokens": None} if starting else usage)
    if found is not None and before is not None and found["prompt_tokens"] is None:
        found["prompt_tokens"] = before["prompt_tokens"]
        found["prompt_tokens_details"] = before["prompt_tokens_details"]
    return found


_GRAMMAR = Grammar(
    delta=b"event: content_block_delta\ndata: ",
    delta_end=b"content_block_delta\ndata: ",
    marks=(b"event: message_", b"event: error"),
    counting=frozenset({"message_start", "message_delta"}),
    final=frozenset({"message_stop"}),
    failing=frozenset({"error"}),
    usage_of=_usage_in,
    error_of=_error_of,
)

MESSAGES = Shape(
    error_object,
    error_event,
    partial(TypedScanner, _GRAMMAR),
    error_in,
    preamble=lambda data: event_type(data) in _PREAMBLE,
    usage=usage_of,
)
