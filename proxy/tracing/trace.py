"""One exchange that is traced: its place in the client's trace, and when its phases began. Pure.

The header is that of W3C Trace Context, level 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from core.exchange import Request
from proxy.tracing.ticks import Ticks

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
_INVALID_VERSION = b"ff"


class Trace:
    """`trace_id` (128 bits) is the client's if it sent one, `parent_id` (64 bits) then its span.
    `span_id` is the exchange's, `upstream_id` that of its request to a replica, which `header`
    names as the parent. `ticks`: of the try that answered last, if it is a stream."""

    __slots__ = ("parent_id", "span_id", "ticks", "trace_id", "upstream_id")

    def __init__(self, request: Request, random_bits: Callable[[int], int]) -> None:
        self.trace_id, self.parent_id = parent_of(request)
        if not self.trace_id:
            self.trace_id = random_bits(128) | 1  # zero is invalid
        self.span_id = random_bits(64) | 1
        self.upstream_id = random_bits(64) | 1
        self.ticks: Ticks | None = None

    def __repr__(self) -> str:
        return f"<Trace {self.trace_id:032x} {self.span_id:016x}>"

    @property
    def header(self) -> bytes:
        """`traceparent` for the replica: sampled."""
        return b"00-%032x-%016x-01" % (self.trace_id, self.upstream_id)


def parent_of(request: Request) -> tuple[int, int]:
    """Trace and span id of the client's `traceparent`; zeros without a valid one."""
    value = request.header(b"traceparent")
    found = _TRACEPARENT.fullmatch(value) if value is not None else None
    if found is None or found[1] == _INVALID_VERSION:
        return 0, 0
    trace_id, span_id = int(found[2], 16), int(found[3], 16)
    return (trace_id, span_id) if trace_id and span_id else (0, 0)
