"""The shape of OpenAI's Responses: typed events, errors as elsewhere in OpenAI's API. Pure."""

from __future__ import annotations

from functools import partial
from typing import Any

import orjson

from core.errors import GatewayError
from proxy.scanner import error_in as openai_error_in
from proxy.surfaces.openai import error_object, one_line
from proxy.surfaces.shape import Shape
from proxy.surfaces.typed_events import Grammar, TypedScanner, event_type

_PREAMBLE = frozenset({"response.created", "response.queued", "response.in_progress"})
_FAILING = frozenset({"response.failed", "error"})
_CODES = {"rate_limit_exceeded": 429, "server_is_overloaded": 503, "invalid_prompt": 400}


def error_event(error: GatewayError, request_id: str) -> bytes:
    """The API's own `error` event, with the `error` object besides: the SDK raises for that, while
    it hands `response.failed` on like any other event."""
    whole = error_object(error, request_id)
    data = {
        "type": "error",
        "code": error.reason,
        "message": error.message,
        "param": error.param,
        "sequence_number": 0,
        **whole,
    }
    return b"event: error\ndata: %b\n\n" % one_line(data)


def error_in(data: bytes) -> dict[str, Any] | None:
    """By `error`, or by the type: an `error` event has code and message at its top, and in
    `response.failed` they are the response's."""
    if (found := openai_error_in(data)) is not None:
        return found
    if data.find(b'"response.failed"') < 0 and data.find(b'"error"') < 0:
        return None
    if event_type(data) not in _FAILING:
        return None
    return _error_of(_document(data))


def _document(data: bytes) -> dict[str, Any]:
    document = orjson.loads(data)
    return document if isinstance(document, dict) else {}


def _error_of(document: dict[str, Any]) -> dict[str, Any] | None:
    response = document.get("response")
    error = (response if isinstance(response, dict) else document).get("error") or document
    if not isinstance(error, dict):
        return {"message": str(error)}
    code = _CODES.get(str(error.get("code")))
    return {"message": error.get("message"), "code": code or error.get("code")}


def usage_of(usage: dict[str, Any] | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    return {
        "prompt_tokens": usage.get("input_tokens"),
        "completion_tokens": usage.get("output_tokens"),
        "prompt_tokens_details": usage.get("input_tokens_details"),
    }


def _usage_in(document: dict[str, Any], before: dict[str, Any] | None) -> dict[str, Any] | None:
    response = document.get("response")
    usage = (response if isinstance(response, dict) else document).get("usage")
    return usage_of(usage) if isinstance(usage, dict) else before


_GRAMMAR = Grammar(
    delta=b"event: response.output_text.delta\ndata: ",
    delta_end=b".delta\ndata: ",
    marks=(
        b"event: response.completed",
        b"event: response.incomplete",
        b"event: response.failed",
        b"event: error",
    ),
    counting=frozenset(),
    final=frozenset({"response.completed", "response.incomplete"}),
    failing=_FAILING,
    usage_of=_usage_in,
    error_of=_error_of,
)

RESPONSES = Shape(
    error_object,
    error_event,
    partial(TypedScanner, _GRAMMAR),
    error_in,
    preamble=lambda data: event_type(data) in _PREAMBLE,
    usage=usage_of,
)
