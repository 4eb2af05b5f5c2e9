"""The spans of an exchange: how they lie in time and in each other, and what they say."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind
from opentelemetry.trace.status import StatusCode

from core.exchange import Request
from proxy.access_log import AccessRecord
from proxy.tracing.spans import SpanMaker
from proxy.tracing.trace import Trace

ROUTE = "/v1/chat/completions"


def spans_of(*phases: tuple[str, float], ended_at: float, **fields: Any) -> list[ReadableSpan]:
    numbers = iter(range(2, 1000, 2))
    request = Request(
        "POST", ROUTE, "", [], b"", "127.0.0.1", "2", 10.0, 10.5, 10.25, scheme="https"
    )
    trace = Trace(request, lambda _: next(numbers))
    given: dict[str, Any] = {"route": ROUTE, "model": "m", "status": 200, "reason": "ok", **fields}
    record = AccessRecord(request_id="r", method="POST", trace=trace, **given)
    record.trail = [("head", 10.0), ("body", 10.25), ("gate", 10.5)]
    for phase, at in phases:
        record.enter(phase, at)
    record.leave(ended_at)
    maker = SpanMaker(Resource({}), lambda at: int(at * 1000), lambda _: next(numbers))
    return list(maker.spans(trace, request, record, ended_at))


def test_spans_cover_the_exchange_without_a_gap() -> None:
    server, *others = spans_of(
        ("auth", 10.5), ("route", 11.0), ("connect", 11.5), ("first_token", 12.0), ("relay", 13.0),
        ended_at=15.0, tenant="acme", prompt_tokens=7, completion_tokens=3, stream=True,
    )  # fmt: skip
    assert server.kind is SpanKind.SERVER
    assert (server.start_time, server.end_time) == (10_000, 15_000)
    phases = [span for span in others if span.kind is SpanKind.INTERNAL]
    assert [span.name for span in phases] == [
        "head", "body", "gate", "auth", "route", "connect", "first_token", "relay"
    ]  # fmt: skip
    edges = [(span.start_time, span.end_time) for span in phases]
    assert [end for _, end in edges[:-1]] == [start for start, _ in edges[1:]]
    assert (edges[0][0], edges[-1][1]) == (10_000, 15_000)
    assert {span.parent.span_id for span in others if span.parent} == {server.context.span_id}
    (call,) = [span for span in others if span.kind is SpanKind.CLIENT]
    assert call.name == "chat m"
    assert (call.start_time, call.end_time) == (11_500, 15_000)
    assert call.attributes is not None
    assert call.attributes["gen_ai.operation.name"] == "chat"
    assert call.attributes["gen_ai.usage.input_tokens"] == 7
    assert call.attributes["gen_ai.usage.output_tokens"] == 3
    assert [(event.name, event.timestamp) for event in call.events] == [("first token", 13_000)]
    assert server.status.status_code is StatusCode.UNSET


def test_each_try_is_a_call_and_those_before_the_last_failed() -> None:
    spans = spans_of(
        ("route", 10.5), ("connect", 11.0), ("route", 12.0), ("connect", 12.5),
        ended_at=14.0, status=502, reason="upstream_failed",
    )  # fmt: skip
    calls = [span for span in spans if span.kind is SpanKind.CLIENT]
    assert [(call.start_time, call.end_time) for call in calls] == [
        (11_000, 12_000),
        (12_500, 14_000),
    ]
    assert {call.status.status_code for call in calls} == {StatusCode.ERROR}
    assert spans[0].status.status_code is StatusCode.ERROR
    assert spans[0].attributes is not None
    assert spans[0].attributes["error.type"] == "upstream_failed"


@pytest.mark.parametrize(
    ("status", "reason", "first_token_ms", "is_error"),
    [
        (429, "limited", None, False),
        (200, "upstream_reset", 1.0, True),
        (499, "client_gone", 1.0, False),
    ],
)
def test_only_what_the_gateway_failed_at_is_an_error(
    status: int, reason: str, first_token_ms: float | None, is_error: bool
) -> None:
    server = spans_of(ended_at=11.0, status=status, reason=reason, first_token_ms=first_token_ms)[0]
    assert (server.status.status_code is StatusCode.ERROR) is is_error
