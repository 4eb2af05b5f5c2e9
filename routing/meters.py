"""The router's instruments, bound once."""

from __future__ import annotations

from core.metrics import Gauge, Metrics
from routing.index import PrefixIndex
from routing.member import Member

_DECISION_BUCKETS = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2)


class RouterMeters:
    """What the router tells of its decisions and of the replicas' accounts."""

    def __init__(self, metrics: Metrics) -> None:
        label = ("replica",)
        self._in_flight = metrics.gauge(
            "headrace_replica_inflight", "Requests this gateway has on a replica.", label
        )
        self._pending = metrics.gauge(
            "headrace_replica_pending_prefill_tokens",
            "Uncached prompt tokens on a replica that have not produced a token.",
            label,
        )
        self._live = metrics.gauge(
            "headrace_replica_live_kv_tokens",
            "Prompt and expected output tokens of the requests on a replica.",
            label,
        )
        self.decided = metrics.histogram(
            "headrace_route_decision_seconds", "Time to choose a replica.", _DECISION_BUCKETS
        ).observe
        self._predicted = metrics.counter(
            "headrace_route_predicted_cached_tokens_total",
            "Prompt tokens believed to be cached, of answers that tell how many were.",
        )
        self._delivered = metrics.counter(
            "headrace_route_delivered_cached_tokens_total",
            "Prompt tokens that the engine found cached.",
        )
        self._refusals = metrics.counter(
            "headrace_route_refusals_total", "Requests that no replica could take.", ("reason",)
        )
        self._entries = metrics.gauge("headrace_index_entries", "Blocks in the prefix index.")
        self._evictions = metrics.counter(
            "headrace_index_evictions_total", "Blocks forgotten for want of room."
        )
        self._evicted = 0
        self.underflow = metrics.counter(
            "headrace_ledger_underflow_total", "Times that more was given back than was charged."
        ).inc
        self._gauges: dict[str, tuple[Gauge, Gauge, Gauge]] = {}

    def show(self, member: Member) -> None:
        """Publish the member's account."""
        replica_id = member.replica.id
        gauges = self._gauges.get(replica_id)
        if gauges is None:
            gauges = (
                self._in_flight.labels(replica_id),
                self._pending.labels(replica_id),
                self._live.labels(replica_id),
            )
            self._gauges[replica_id] = gauges
        account = member.account
        gauges[0].set(account.in_flight)
        gauges[1].set(account.pending_tokens)
        gauges[2].set(account.live_tokens)

    def forget(self, member: Member) -> None:
        """Keep no handles of a replica that is gone; what it still carries is shown until done."""
        if member.account.in_flight == 0:
            self._gauges.pop(member.replica.id, None)

    def compared(self, predicted: int, delivered: int) -> None:
        self._predicted.inc(predicted)
        self._delivered.inc(delivered)

    def refused(self, reason: str) -> None:
        self._refusals.labels(reason).inc()

    def index(self, index: PrefixIndex) -> None:
        self._entries.set(len(index))
        if index.evictions != self._evicted:
            self._evictions.inc(index.evictions - self._evicted)
            self._evicted = index.evictions
