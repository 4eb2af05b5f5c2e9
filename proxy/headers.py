"""Which headers cross the gateway. Both directions are built from scratch from allow-lists:
what is not named here does not pass (hop-by-hop headers and credentials first of all)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

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


class Response(NamedTuple):
    """What is looked at of a replica's headers: `coding` and `content_type` in lower case and empty
    when they are not there, and what passes to the client, with what the gateway always says."""

    coding: bytes
    content_type: bytes
    passed: tuple[Header, ...]


@lru_cache(maxsize=32)
def read_response(headers: tuple[Header, ...]) -> Response:
    """Remembered, because a replica's headers are the same until the second changes."""
    passed = [header for header in headers if header[0] in _RESPONSE_PASSED]
    return Response(
        header_value(headers, b"content-encoding").lower(),
        header_value(headers, b"content-type").lower(),
        (*passed, *_NOT_STORED),
    )


def header_value(headers: Sequence[Header], name: bytes) -> bytes:
    for key, value in headers:
        if key == name:
            return value
    return b""
