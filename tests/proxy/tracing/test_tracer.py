"""Which exchanges are traced, and failures of the collector. Sending: tests/wire."""

from __future__ import annotations

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from core.exchange import Request
from core.metrics import MetricsBoard
from proxy.tracing.config import TracingConfig
from proxy.tracing.tracer import CountingExporter, Tracer

REQUEST = Request("POST", "/", "", [], b"", "127.0.0.1", "1.1", 0.0, 0.0)


def traced(ratio: float) -> int:
    config = TracingConfig(endpoint="http://127.0.0.1:1/v1/traces", sample_ratio=ratio)
    tracer = Tracer(config, MetricsBoard(1).for_worker(0))
    return sum(tracer.begin(REQUEST) is not None for _ in range(2000))


def test_a_share_of_the_exchanges_is_traced() -> None:
    assert traced(0.0) == 0
    assert traced(1.0) == 2000
    assert 800 < traced(0.5) < 1200


class Collector(SpanExporter):
    def __init__(self, result: SpanExportResult) -> None:
        self._result = result

    def export(self, spans: object) -> SpanExportResult:
        return self._result


def test_batches_that_are_not_taken_are_counted() -> None:
    failures: list[None] = []
    for result in (SpanExportResult.SUCCESS, SpanExportResult.FAILURE):
        CountingExporter(Collector(result), lambda: failures.append(None)).export([])
    assert len(failures) == 1

    def gone() -> None:
        raise RuntimeError("Event loop is closed")

    exporter = CountingExporter(Collector(SpanExportResult.FAILURE), gone)
    assert exporter.export([]) is SpanExportResult.FAILURE
