"""How much of its clients' requests a worker holds, and whether it may take more.

One object per worker. The listener counts, the pipeline asks before it does any work, and a
client protocol asks before it reads a body.
"""

from __future__ import annotations

from core.errors import Unavailable
from core.metrics import Metrics
from proxy.config import ListenLimits
from proxy.overload.level import Level

_RETRY_AFTER_S = (1.0, 2.0, 3.0)
"""In turn, so that those who were refused together do not come back together."""


class Admission:
    """`in_flight` are requests being handled, `buffered` bytes of bodies in memory, `level` is how
    much is shed; `keep_alive`: connections may wait for another request; `draining`: the worker is
    to end, and clients should go elsewhere."""

    def __init__(self, limits: ListenLimits, metrics: Metrics) -> None:
        self.limits = limits
        self.in_flight = 0
        self.buffered = 0
        self.level = Level.NORMAL
        self.keep_alive = True
        self.draining = False
        self._refused = 0
        self._shed = metrics.counter(
            "headrace_requests_shed_total",
            "Requests answered with 503 because the gateway itself had too much to do",
            ("reason",),
        )
        self._bytes = metrics.gauge(
            "headrace_buffered_bytes", "Bytes of request bodies in memory"
        ).labels()

    def __repr__(self) -> str:
        return f"<Admission in_flight={self.in_flight} {self.buffered} B {self.level.name}>"

    def hold(self, size: int) -> None:
        """So many more bytes are in memory (fewer: negative)."""
        self.buffered += size

    def publish(self) -> None:
        """Show the figures that change with every request, now and then."""
        self._bytes.set(self.buffered)

    def check_request(self) -> None:
        """Raises Unavailable when a complete request, already counted, must not be handled."""
        if self.level >= Level.REFUSE:
            raise self._overloaded("overload")
        most = self.limits.max_requests_in_flight
        if most is not None and self.in_flight > most:
            raise self._overloaded("in_flight")

    def check_body(self) -> None:
        """Raises Unavailable when no further bytes of bodies may be taken in."""
        if self.level >= Level.REFUSE:
            raise self._overloaded("overload")
        if self.buffered > self.limits.max_buffered_bytes:
            raise self._overloaded("buffered")

    def _overloaded(self, reason: str) -> Unavailable:
        self._refused += 1
        self._shed.labels(reason).inc()
        return Unavailable(
            "The gateway has too much to do. Try again shortly.",
            code="overloaded",
            retry_after_s=_RETRY_AFTER_S[self._refused % len(_RETRY_AFTER_S)],
        )
