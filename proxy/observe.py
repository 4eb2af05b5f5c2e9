"""What the gateway tells about each exchange: one log line and the metrics behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from core.clock import Clock
from core.errors import GatewayError
from core.exchange import Exchange
from core.metrics import Counter, Histogram, Metrics
from proxy.access_log import AccessLog, AccessRecord, milliseconds
from proxy.budgets.config import BudgetsConfig
from proxy.budgets.judge import Budgets, declared_s
from proxy.budgets.meters import BudgetMeters
from proxy.recent import RecentRow
from proxy.tracing.tracer import Tracer
from proxy.usage import UsageLog

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Observer:
    """Opens a record for an exchange and closes it exactly once. `log` and `usage` are for the
    maker to close."""

    def __init__(
        self,
        *,
        log: AccessLog,
        metrics: Metrics,
        clock: Clock,
        usage: UsageLog | None = None,
        budgets: BudgetsConfig | None = None,
        tracer: Tracer | None = None,
        recent: RecentRow | None = None,
    ) -> None:
        self.log = log
        self.usage = usage
        self.tracer = tracer
        self._recent = recent
        self.budgets = None if budgets is None else Budgets(budgets)
        self._tiers = BudgetMeters(metrics, () if budgets is None else budgets.tiers)
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
        self._duration = metrics.histogram(
            "headrace_request_duration_seconds",
            "From the first byte of the request to the end of the answer",
            (*_SECONDS[3:], 60.0, 120.0, 300.0),
            ("model",),
        )
        self._tpot = metrics.histogram(
            "headrace_time_per_output_token_seconds",
            "Of each stream: from its first event to its end, by the tokens after the first",
            (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.033, 0.05, 0.1, 0.25, 1.0),
            ("model",),
        )
        self._tokens = metrics.counter(
            "headrace_tokens_total", "Tokens by model and kind", ("model", "kind")
        )

        # Bound children: both are bounded, by the routes and by the configured models.
        self._by_route: dict[tuple[str | None, int | None], Counter] = {}
        self._by_model: dict[str, _ModelMeters] = {}

    def __repr__(self) -> str:
        return f"<Observer log={self.log!r}>"

    def open(self, exchange: Exchange) -> AccessRecord:
        self._in_flight.inc()
        request = exchange.request
        received_at, complete_at = request.received_at, request.complete_at or self._now()
        head_at = request.head_at or complete_at
        record = AccessRecord(
            request_id=exchange.id,
            peer=request.peer,
            scheme=request.scheme,
            method=request.method,
            phase="gate",
            trail=[("head", received_at), ("body", head_at), ("gate", complete_at)],
        )
        if (shake := request.handshake) is not None:
            # As if the first byte had come at once: what is between is nobody's time.
            record.trail.insert(0, ("tls", received_at - shake.seconds))
            record.tls_resumed = shake.resumed
        if self.tracer is not None and (trace := self.tracer.begin(request)) is not None:
            record.trace, record.trace_id = trace, f"{trace.trace_id:032x}"
        return record

    def close(self, exchange: Exchange, record: AccessRecord) -> None:
        now = self._now()
        self._in_flight.dec()
        record.bytes_sent = exchange.bytes_sent
        record.total_ms = milliseconds(now - record.trail[0][1])
        trace, first_at = record.trace, record.first_event_at
        times = _Times(None, None, 0.0)
        if first_at is not None:
            times = _Times(now - first_at, (record.first_events_at or now) - first_at, 0.0)
        record.leave(now)
        if self.budgets is not None and record.model is not None:
            record.tier = self.budgets.tier_of(exchange.request, record.tenant, record.model)
            if context_s := declared_s(exchange.request):
                times = times._replace(context_s=context_s)
        key = (record.route, record.status)
        counter = self._by_route.get(key)
        if counter is None:
            counter = self._exchanges.labels(record.route or "none", str(record.status or 0))
            self._by_route[key] = counter
        counter.inc()
        if record.reason is None:
            record.reason = "ok"
        elif record.reason != "ok":
            self._failures.labels(record.phase or "none", record.reason).inc()
        if record.model is not None:
            meters = self._by_model.get(record.model)
            if meters is None:
                meters = self._by_model[record.model] = self._meters_of(record.model)
            meters.count(record)
            # Later, with many others in a row: that costs half.
            record.due = self, times
        if trace is not None and self.tracer is not None:
            record.word_phases()
            self.tracer.end(trace, exchange.request, record, now)
        self._keep(record, now)

    def _keep(self, record: AccessRecord, now: float) -> None:
        if self._recent is not None:
            self._recent.take(record, now)
        if record.due is None:  # it was looked at already
            self.tell()
        self.log.write(record)
        if self.usage is not None:
            self.usage.write(record)

    def observe(self, record: AccessRecord, spent: Mapping[str, float], times: _Times) -> None:
        """Note what took how long, and too long, for `tell`."""
        if record.model is not None:
            self._by_model[record.model].note(record, times.relay_s)
        budgets, tier = self.budgets, record.tier
        if budgets is not None and tier is not None:
            found = budgets.judge(
                tier, spent, context_s=times.context_s, first_tokens_s=times.first_tokens_s
            )
            self._tiers.note(found)
            record.over_budget = list(found.over) or None

    def tell(self) -> None:
        """Put into the metrics what was noted."""
        self._tiers.tell()
        for meters in self._by_model.values():
            meters.tell()

    def refused(self, exchange: Exchange, error: GatewayError) -> None:
        """A request that never became one."""
        record = self.open(exchange)
        record.phase = "gate"
        record.status = error.status
        record.reason = error.reason
        self.close(exchange, record)

    def _meters_of(self, model: str) -> _ModelMeters:
        tokens = self._tokens
        return _ModelMeters(
            duration=self._duration.labels(model),
            ttft=self._ttft.labels(model),
            tpot=self._tpot.labels(model),
            prompt=tokens.labels(model, "prompt"),
            cached=tokens.labels(model, "cached"),
            completion=tokens.labels(model, "completion"),
        )


class _Times(NamedTuple):
    """Seconds: from the first event to the end and to the tenth (None: there was none), and spent
    before the request, as the client says."""

    relay_s: float | None
    first_tokens_s: float | None
    context_s: float


class _ModelMeters:
    """The metrics of one model, bound once."""

    __slots__ = ("_cached", "_completion", "_histograms", "_noted", "_prompt")

    def __init__(
        self,
        *,
        duration: Histogram,
        ttft: Histogram,
        tpot: Histogram,
        prompt: Counter,
        cached: Counter,
        completion: Counter,
    ) -> None:
        self._histograms = duration, ttft, tpot
        self._noted: tuple[list[float], list[float], list[float]] = [], [], []
        self._prompt = prompt
        self._cached = cached
        self._completion = completion

    def __repr__(self) -> str:
        return f"<_ModelMeters {self._histograms[0]!r}>"

    def note(self, record: AccessRecord, relay_s: float | None) -> None:
        duration, ttft, tpot = self._noted
        if record.total_ms is not None:
            duration.append(record.total_ms / 1e3)
        if record.ttft_ms is not None:
            ttft.append(record.ttft_ms / 1e3)
        output = record.completion_tokens
        if output is not None and output > 1 and record.stream and relay_s is not None:
            tpot.append(relay_s / (output - 1))

    def tell(self) -> None:
        for histogram, values in zip(self._histograms, self._noted, strict=True):
            if values:
                histogram.observe_all(values)
                values.clear()

    def count(self, record: AccessRecord) -> None:
        if record.prompt_tokens:
            self._prompt.inc(record.prompt_tokens)
        if record.cached_tokens:
            self._cached.inc(record.cached_tokens)
        if record.completion_tokens:
            self._completion.inc(record.completion_tokens)
