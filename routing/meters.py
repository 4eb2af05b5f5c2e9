"""The router's instruments, bound once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from core.metrics import Gauge, Metrics
from routing.index import PrefixIndex
from routing.member import Member

_WAIT_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_DECISION_BUCKETS = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2)


class RouterMeters:
    """What the router tells of its decisions and, when asked to, of the replicas' accounts."""

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
        self.predicted = metrics.counter(
            "headrace_route_predicted_cached_tokens_total",
            "Prompt tokens believed to be cached, of answers that tell how many were.",
        ).inc
        self.delivered = metrics.counter(
            "headrace_route_delivered_cached_tokens_total",
            "Prompt tokens that the engine found cached.",
        ).inc
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
        self.unlocked = metrics.counter(
            "headrace_route_unlocked_total",
            "Decisions made without the lock between workers, which another one kept too long.",
        ).inc
        self._gauges: dict[str, tuple[Gauge, Gauge, Gauge]] = {}
        self._leaving: list[Member] = []
        self._left: set[str] = set()

    def publish(self, members: Sequence[Member], index: PrefixIndex) -> None:
        """Show the accounts of `members` and of those forgotten that still carry something."""
        self._leaving = [member for member in self._leaving if member.account.own.in_flight]
        sums = dict.fromkeys(self._gauges, (0, 0, 0))  # whoever is gone is shown with nothing
        for member in (*members, *self._leaving):
            account = member.account.own  # that of each worker, as they are added up
            in_flight, pending, live = sums.get(member.replica.id, (0, 0, 0))
            sums[member.replica.id] = (
                in_flight + account.in_flight,
                pending + account.pending_tokens,
                live + account.live_tokens,
            )
        self._remove_those_left({member.replica.id for member in (*members, *self._leaving)}, sums)
        for replica_id, values in sums.items():
            for gauge, value in zip(self._of(replica_id), values, strict=True):
                gauge.set(value)
        self._entries.set(len(index))
        self._evictions.inc(index.evictions - self._evicted)
        self._evicted = index.evictions

    def left(self, replica_id: str) -> None:
        """It is in the configuration no more: shown until it carries nothing, unless it returns."""
        self._left.add(replica_id)

    def _remove_those_left(self, known: set[str], sums: dict[str, tuple[int, int, int]]) -> None:
        for replica_id in self._left - known:
            sums.pop(replica_id, None)
            if self._gauges.pop(replica_id, None) is not None:
                for family in (self._in_flight, self._pending, self._live):
                    family.remove(replica_id)
        self._left &= {member.replica.id for member in self._leaving}

    def _of(self, replica_id: str) -> tuple[Gauge, Gauge, Gauge]:
        gauges = self._gauges.get(replica_id)
        if gauges is None:
            gauges = self._gauges[replica_id] = (
                self._in_flight.labels(replica_id),
                self._pending.labels(replica_id),
                self._live.labels(replica_id),
            )
        return gauges

    def forget(self, member: Member) -> None:
        """The replica is gone; what it still carries is shown until that is done."""
        self._leaving.append(member)

    def refused(self, reason: str) -> None:
        self._refusals.labels(reason).inc()


class WaitingMeters:
    """What the waiting room tells."""

    def __init__(self, metrics: Metrics) -> None:
        self._depth = metrics.gauge(
            "headrace_queue_depth", "Requests that wait for a replica with room.", ("model",)
        )
        self._age = metrics.gauge(
            "headrace_queue_age_seconds",
            "How long they have waited, added up (divided by the depth: the mean).",
            ("model",),
        )
        self.waited = metrics.histogram(
            "headrace_queue_wait_seconds", "How long requests waited for a replica.", _WAIT_BUCKETS
        ).observe
        self._shed = metrics.counter(
            "headrace_queue_shed_total",
            "Requests that were refused instead of waiting (on).",
            ("reason",),
        )
        self._shown: set[str] = set()

    def publish(self, queues: Mapping[str, tuple[int, float]]) -> None:
        """Depth and added age by model; a model that is left out has nobody waiting."""
        for model in self._shown - queues.keys():
            self._depth.labels(model).set(0)
            self._age.labels(model).set(0)
        for model, (depth, age) in queues.items():
            self._depth.labels(model).set(depth)
            self._age.labels(model).set(age)
        self._shown |= queues.keys()

    def shed(self, reason: str) -> None:
        self._shed.labels(reason).inc()
