"""Which headers cross the gateway. Both directions are built from scratch from allow-lists:
what is not named here does not pass (hop-by-hop headers and credentials first of all)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from core.exchange import Header, Request

_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_RESPONSE_PASSED = frozenset(
    {b"content-type", b"retry-after", b"retry-after-ms", b"content-language", b"vary"}
)
_NOT_STORED = ((b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))


def upstream_headers(request: Request, request_id: str) -> list[Header]:
    """Headers for the replica. The request id is always the gateway's own (vLLM keys state by
    it); the replica's credentials are added by the connection."""
    headers: list[Header] = [
        (b"content-type", b"application/json"),
        (b"x-request-id", request_id.encode("ascii")),
    ]
    traceparent = request.header(b"traceparent")
    if traceparent is not None and _TRACEPARENT.fullmatch(traceparent):
        headers.append((b"traceparent", traceparent))
        tracestate = request.header(b"tracestate")
        if tracestate is not None and len(tracestate) <= 512:
            headers.append((b"tracestate", tracestate))
    return headers


def with_traceparent(headers: Sequence[Header], traceparent: bytes) -> list[Header]:
    """`headers` for the replica as part of our own trace. The client's `tracestate` stays."""
    others = [header for header in headers if header[0] != b"traceparent"]
    return [*others, (b"traceparent", traceparent)]


def downstream_headers(upstream: Sequence[Header], own: Sequence[Header]) -> list[Header]:
    """Headers for the client: what passes from the replica's, then the gateway's own."""
    return [
        *[header for header in upstream if header[0] in _RESPONSE_PASSED],
        *_NOT_STORED,
        *own,
    ]


def header_value(headers: Sequence[Header], name: bytes) -> bytes:
    for key, value in headers:
        if key == name:
            return value
    return b""
