"""What a worker counts about TLS towards clients."""

from __future__ import annotations

import ssl

from core.metrics import Metrics


class TlsMeters:
    """The metrics of one worker."""

    def __init__(self, metrics: Metrics) -> None:
        self._keys = metrics.gauge(
            "headrace_tls_ticket_keys",
            "Workers by where the keys of their TLS session tickets come from",
            ("source",),
        )
        self._alerts = metrics.counter(
            "headrace_tls_alerts_total", "Handshakes refused with an alert, by reason", ("reason",)
        )
        handshakes = metrics.counter(
            "headrace_tls_handshakes_total",
            "Handshakes completed, by whether a session was resumed",
            ("resumed",),
        )
        self._handshakes = {False: handshakes.labels("no"), True: handshakes.labels("yes")}
        self._source = ""

    def __repr__(self) -> str:
        return f"<TlsMeters tickets={self._source}>"

    def tickets_from(self, source: str) -> None:
        if self._source:
            self._keys.labels(self._source).set(0)
        self._source = source
        self._keys.labels(source).set(1)

    def completed(self, *, resumed: bool) -> None:
        self._handshakes[resumed].inc()

    def refused(self, error: ssl.SSLError) -> None:
        # OpenSSL gives a reason; an error that Python makes has no such attribute.
        self._alerts.labels((getattr(error, "reason", None) or "other").lower()).inc()
