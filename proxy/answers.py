"""Where every failure becomes bytes for a client: the only place that words an error.

Not started: a JSON error in the shape of the path, with its status and Retry-After. Started: one
SSE error event on a single `data:` line and nothing that ends the stream; the caller then cuts it,
because the SDKs take a clean end for success.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import orjson

from core.errors import GatewayError
from core.exchange import Exchange, Header
from proxy.surfaces.openai import OPENAI
from proxy.surfaces.registry import shape_at
from proxy.surfaces.shape import Shape

_NO_RETRY_ABOVE_S = 60.0


def error_event(
    error: GatewayError, request_id: str, *, mid_event: bool, shape: Shape = OPENAI
) -> bytes:
    """One terminal SSE event. `mid_event`: an event was cut, so close it with an empty line."""
    event = shape.error_event(error, request_id)
    return b"\n\n" + event if mid_event else event


def retry_headers(retry_after_s: float | None) -> list[Header]:
    """`Retry-After` is an integer >= 1 (RFC 9110 section 10.2.3). The SDKs prefer
    `retry-after-ms`, and sleep however long they are told, hence `x-should-retry`."""
    if retry_after_s is None:
        return []
    headers = [
        (b"retry-after", b"%d" % max(1, math.ceil(retry_after_s))),
        (b"retry-after-ms", b"%d" % max(1, math.ceil(retry_after_s * 1000))),
    ]
    if retry_after_s > _NO_RETRY_ABOVE_S:
        headers.append((b"x-should-retry", b"false"))
    return headers


def answer_error(exchange: Exchange, error: GatewayError, headers: Sequence[Header]) -> None:
    """Answer an exchange that has not started. `headers`: those that every answer carries."""
    shape = shape_at(exchange.request.path)
    body = orjson.dumps(shape.error_object(error, exchange.id))
    all_headers = [
        (b"content-type", b"application/json"),
        *headers,
        *error.headers,
        *retry_headers(error.retry_after_s),
    ]
    if error.status == 401:  # without a word on what was wrong (RFC 6750 section 3)
        all_headers.append((b"www-authenticate", b"Bearer"))
    exchange.start(error.status, all_headers, len(body))
    exchange.finish(body)


def answer_json(exchange: Exchange, value: Any, headers: Sequence[Header]) -> None:
    body = orjson.dumps(value)
    exchange.start(200, [(b"content-type", b"application/json"), *headers], len(body))
    exchange.finish(body)
