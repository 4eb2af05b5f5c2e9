"""Decides which exchanges are traced, and sends their spans, off the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from core.exchange import Request
from core.metrics import Metrics
from proxy.access_log import AccessRecord
from proxy.tracing.config import TracingConfig
from proxy.tracing.spans import SpanMaker
from proxy.tracing.trace import Trace

_TIMEOUT_S = 5.0
_LAST_S = 2.0
"""For what is still to be sent when the gateway ends."""
_DELAY_MS = 1000.0


class Tracer:
    """Spans wait in a bounded queue for a thread of OpenTelemetry's SDK; what is too much, or what
    the collector does not take, is dropped, and serving goes on."""

    def __init__(self, config: TracingConfig, metrics: Metrics) -> None:
        """Raises ConfigError for secrets that cannot be read."""
        self._ratio = config.sample_ratio
        self._headers = {name: secret.reveal() for name, secret in config.headers.items()}
        self._endpoint = config.endpoint
        self._failed = metrics.counter(
            "headrace_trace_export_failures_total",
            "Batches of spans that the collector did not take",
        ).labels()
        offset_ns = time.time_ns() - time.monotonic_ns()
        self._maker = SpanMaker(
            Resource.create({"service.name": config.service_name}),
            lambda at: int(at * 1e9) + offset_ns,
            random.getrandbits,
        )
        self._processor: BatchSpanProcessor | None = None

    def __repr__(self) -> str:
        return f"<Tracer {self._ratio} to {self._endpoint}>"

    async def start(self) -> None:
        # Its words would come for each batch, from a thread.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        exporter = OTLPSpanExporter(
            endpoint=self._endpoint, headers=self._headers, timeout=_TIMEOUT_S
        )
        loop = asyncio.get_running_loop()
        counting = CountingExporter(exporter, lambda: loop.call_soon_threadsafe(self._failed.inc))
        self._processor = BatchSpanProcessor(counting, schedule_delay_millis=_DELAY_MS)

    async def close(self) -> None:
        """What is waiting gets another moment."""
        processor, self._processor = self._processor, None
        if processor is None:
            return
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def end() -> None:
            processor.shutdown()  # type: ignore[no-untyped-call]
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(ended.set)

        # Not of the loop's executor, which the process would wait for.
        threading.Thread(target=end, daemon=True).start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_S):
                await ended.wait()

    def begin(self, request: Request) -> Trace | None:
        """None: this one is not traced."""
        if random.random() >= self._ratio:
            return None
        return Trace(request, random.getrandbits)

    def end(self, trace: Trace, request: Request, record: AccessRecord, now: float) -> None:
        processor = self._processor
        if processor is not None:
            for span in self._maker.spans(trace, request, record, now):
                processor.on_end(span)


class CountingExporter(SpanExporter):
    """Tells `on_failure` of each batch that `inner` could not send. Used on a thread."""

    def __init__(self, inner: SpanExporter, on_failure: Callable[[], object]) -> None:
        self._inner = inner
        self._on_failure = on_failure

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        if result is not SpanExportResult.SUCCESS:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._on_failure()
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)
