"""What the gateway tells about each exchange: one log line and the metrics behind it."""

from __future__ import annotations

from core.clock import Clock
from core.errors import GatewayError
from core.exchange import Exchange
from core.metrics import Metrics
from proxy.access_log import AccessLog, AccessRecord, milliseconds

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Observer:
    """Opens a record for an exchange and closes it exactly once."""

    def __init__(self, *, log: AccessLog, metrics: Metrics, clock: Clock) -> None:
        self._log = log
        self._now = clock
        self._in_flight = metrics.gauge(
            "headrace_exchanges_in_flight", "Exchanges being handled"
        ).labels()
        self._exchanges = metrics.counter(
            "headrace_exchanges_total", "Exchanges by route and status", ("route", "status")
        )
        self._failures = metrics.counter(
            "headrace_failures_total", "Failed exchanges by phase and reason", ("phase", "reason")
        )
        self._ttft = metrics.histogram(
            "headrace_time_to_first_token_seconds",
            "From the first byte of the request to the first event sent to the client",
            _SECONDS,
            ("model",),
        )
        self._overhead = metrics.histogram(
            "headrace_gateway_seconds",
            "From the first byte of the request to the request being sent upstream",
            (0.0001, 0.00025, 0.0005, *_SECONDS[:10]),
        ).labels()
        self._tokens = metrics.counter(
            "headrace_tokens_total", "Tokens by model and kind", ("model", "kind")
        )

    def __repr__(self) -> str:
        return f"<Observer log={self._log!r}>"

    def open(self, exchange: Exchange) -> AccessRecord:
        self._in_flight.inc()
        request = exchange.request
        return AccessRecord(request_id=exchange.id, peer=request.peer, method=request.method)

    def close(self, exchange: Exchange, record: AccessRecord) -> None:
        self._in_flight.dec()
        record.bytes_sent = exchange.bytes_sent
        record.total_ms = milliseconds(self._now() - exchange.request.received_at)
        self._exchanges.labels(record.route or "none", str(record.status or 0)).inc()
        if record.reason is None:
            record.reason = "ok"
        elif record.reason != "ok":
            self._failures.labels(record.phase or "none", record.reason).inc()
        if record.model is not None:
            self._observe_tokens(record, record.model)
        self._log.write(record)

    def refused(self, exchange: Exchange, error: GatewayError) -> None:
        """A request that never became one."""
        record = self.open(exchange)
        record.phase = "gate"
        record.status = error.status
        record.reason = error.reason
        self.close(exchange, record)

    def _observe_tokens(self, record: AccessRecord, model: str) -> None:
        if record.ttft_ms is not None:
            self._ttft.labels(model).observe(record.ttft_ms / 1e3)
            if record.first_token_ms is not None:
                self._overhead.observe((record.ttft_ms - record.first_token_ms) / 1e3)
        for kind, count in (
            ("prompt", record.prompt_tokens),
            ("cached", record.cached_tokens),
            ("completion", record.completion_tokens),
        ):
            if count:
                self._tokens.labels(model, kind).inc(count)
