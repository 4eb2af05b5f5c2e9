"""The spans of one traced exchange, made when it is over. Pure.

Names and attributes are those of OpenTelemetry's semantic conventions for HTTP servers and for
generative AI. Never a prompt, an answer or a credential.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from core.exchange import Request
from proxy.access_log import AccessRecord
from proxy.phases import PHASES
from proxy.tracing.trace import Trace

Attributes = Mapping[str, str | int | float | bool]
OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
_SCOPE = InstrumentationScope("headrace")
_BEFORE = ("head", "body")


class SpanMaker:
    """`unix_ns` turns a monotonic instant into nanoseconds since 1970."""

    def __init__(
        self,
        resource: Resource,
        unix_ns: Callable[[float], int],
        random_bits: Callable[[int], int],
    ) -> None:
        self._resource = resource
        self._unix_ns = unix_ns
        self._random_bits = random_bits

    def __repr__(self) -> str:
        return "<SpanMaker>"

    def spans(
        self, trace: Trace, request: Request, record: AccessRecord, ended_at: float
    ) -> Iterator[ReadableSpan]:
        """The server's span, one for each phase, and one for each replica that was asked.
        `record` is closed."""
        begun_at = record.trail[0][1]
        failed = record.reason not in (None, "ok", "client_gone") and (record.status or 0) >= 500
        cut = record.reason not in (None, "ok", "client_gone") and record.first_token_ms is not None
        status = Status(StatusCode.ERROR) if failed or cut else Status(StatusCode.UNSET)
        yield self._span(
            trace,
            f"{record.method} {record.route or 'none'}",
            begun_at,
            ended_at,
            span_id=trace.span_id,
            parent_id=trace.parent_id,
            kind=SpanKind.SERVER,
            attributes=_server_attributes(request, record),
            status=status,
        )
        trail = record.trail
        for (phase, at), (_, until) in pairwise(trail):
            if phase in PHASES:
                yield self._span(trace, phase, at, until, parent_id=trace.span_id)
        yield from self._calls(trace, record, trail, status)

    def _calls(
        self,
        trace: Trace,
        record: AccessRecord,
        trail: list[tuple[str, float]],
        status: Status,
    ) -> Iterator[ReadableSpan]:
        """One span for each try: the last one ended the exchange, those before had failed."""
        begun = [index for index, (phase, _) in enumerate(trail) if phase == "connect"]
        operation = OPERATIONS.get(record.route or "")
        for index in begun:
            last = index == begun[-1]
            ends = [at for phase, at in trail[index + 1 :] if phase in ("route", "")]
            firsts = [at for phase, at in trail[index + 1 :] if phase == "relay"]
            events = list(self._events(trace, firsts[0])) if last and firsts else []
            yield self._span(
                trace,
                f"{operation or record.route} {record.model}",
                trail[index][1],
                ends[0],
                span_id=trace.upstream_id if last else None,
                parent_id=trace.span_id,
                kind=SpanKind.CLIENT,
                attributes=_call_attributes(record, operation)
                if last
                else {"error.type": "retried"},
                status=status if last else Status(StatusCode.ERROR),
                events=events,
            )

    def _events(self, trace: Trace, first_at: float) -> Iterator[Event]:
        """The first token, and some of those that followed."""
        yield Event("first token", timestamp=self._unix_ns(first_at))
        for number, at in () if trace.ticks is None else trace.ticks.kept:
            # The number of the read that brought it: some bring several tokens.
            yield Event("token", {"headrace.read": number}, timestamp=self._unix_ns(at))

    def _span(
        self,
        trace: Trace,
        name: str,
        begun_at: float,
        ended_at: float,
        *,
        span_id: int | None = None,
        parent_id: int = 0,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes | None = None,
        status: Status | None = None,
        events: list[Event] | None = None,
    ) -> ReadableSpan:
        flags = TraceFlags(TraceFlags.SAMPLED)
        own = span_id or self._random_bits(64) | 1
        remote = parent_id == trace.parent_id
        parent = SpanContext(trace.trace_id, parent_id, remote, flags) if parent_id else None
        return ReadableSpan(
            name,
            context=SpanContext(trace.trace_id, own, False, flags),
            parent=parent,
            resource=self._resource,
            attributes=attributes or {},
            events=events or (),
            kind=kind,
            status=status or Status(StatusCode.UNSET),
            start_time=self._unix_ns(begun_at),
            end_time=self._unix_ns(ended_at),
            instrumentation_scope=_SCOPE,
        )


def _server_attributes(request: Request, record: AccessRecord) -> Attributes:
    found: dict[str, str | int | float | bool] = {
        "http.request.method": request.method,
        "url.scheme": request.scheme or "https",
        "network.protocol.version": request.version,
        "headrace.request_id": record.request_id,
    }
    if record.route is not None:
        found["http.route"] = found["url.path"] = record.route
    if record.status:
        found["http.response.status_code"] = record.status
    for name in ("tenant", "tier", "tries"):
        if (value := getattr(record, name)) is not None:
            found[f"headrace.{name}"] = value
    if record.reason not in (None, "ok"):
        found["error.type"] = str(record.reason)
    return found


def _call_attributes(record: AccessRecord, operation: str | None) -> Attributes:
    found: dict[str, str | int | float | bool] = {"gen_ai.provider.name": "vllm"}
    if operation is not None:
        found["gen_ai.operation.name"] = operation
    pairs = {
        "gen_ai.request.model": record.model,
        "gen_ai.request.stream": record.stream,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "headrace.replica": record.replica,
    }
    found.update({name: value for name, value in pairs.items() if value is not None})
    if record.first_token_ms is not None:
        found["gen_ai.response.time_to_first_chunk"] = record.first_token_ms / 1e3
    if record.reason not in (None, "ok"):
        found["error.type"] = str(record.reason)
    return found
