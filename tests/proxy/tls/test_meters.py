"""What a worker counts about TLS."""

from __future__ import annotations

import ssl

from core.metrics import Metrics
from proxy.tls.meters import TlsMeters


def test_only_the_source_of_now_is_counted() -> None:
    metrics = Metrics.private()
    meters = TlsMeters(metrics)
    meters.tickets_from("memory")
    meters.tickets_from("secret")
    assert metrics.value("headrace_tls_ticket_keys", "memory") == 0
    assert metrics.value("headrace_tls_ticket_keys", "secret") == 1


def test_handshakes_and_alerts() -> None:
    metrics = Metrics.private()
    meters = TlsMeters(metrics)
    for resumed in (True, False, True):
        meters.completed(resumed=resumed)
    meters.refused(ssl.SSLError("without a reason"))
    assert metrics.value("headrace_tls_handshakes_total", "yes") == 2
    assert metrics.value("headrace_tls_handshakes_total", "no") == 1
    assert metrics.value("headrace_tls_alerts_total", "other") == 1
