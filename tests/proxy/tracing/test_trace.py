"""The place of an exchange in its client's trace (W3C Trace Context)."""

from __future__ import annotations

import pytest

from core.exchange import Request
from proxy.tracing.trace import Trace, parent_of

TRACE, SPAN = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
GOOD = b"00-%032x-%016x-00" % (TRACE, SPAN)


def request(traceparent: bytes | None) -> Request:
    headers = [] if traceparent is None else [(b"traceparent", traceparent)]
    return Request("POST", "/", "", headers, b"", "127.0.0.1", "1.1", 0.0, 0.0)


def test_a_clients_trace_goes_on() -> None:
    numbers = iter((10, 20))
    trace = Trace(request(GOOD), lambda _: next(numbers))
    assert (trace.trace_id, trace.parent_id) == (TRACE, SPAN)
    assert (trace.span_id, trace.upstream_id) == (11, 21)
    assert trace.header == b"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000015-01"


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        GOOD.upper(),
        GOOD[:-1],
        b"ff" + GOOD[2:],
        b"00-%032x-%016x-00" % (0, SPAN),
        b"00-%032x-%016x-00" % (TRACE, 0),
    ],
)
def test_what_is_no_traceparent_begins_a_new_trace(value: bytes | None) -> None:
    assert parent_of(request(value)) == (0, 0)
    trace = Trace(request(value), lambda bits: 1 << (bits - 1))
    assert (trace.trace_id, trace.parent_id) == ((1 << 127) | 1, 0)
