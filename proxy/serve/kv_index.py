"""Replicas that tell what their prefix caches hold: followed, and put into the router's index.

Performs: a timer. Joins `backend/kv` (what they tell, and whether it is complete) and
`routing/exact_cache.py` (which blocks of ours that are).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial

import zmq

from backend.config import ReplicaConfig, UpstreamConfig
from backend.kv.events import Batch
from backend.kv.sockets import Context
from backend.kv.subscriber import Subscriber
from core.clock import Clock
from core.identity import identity
from core.kv_events import CPU, Event, Trust
from core.metrics import Metrics
from core.tasks import spawn
from routing.exact_cache import ExactCache, Place

REVIEW_S = 0.1
_LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_REASONS = ("orphan", "image", "bound")

Start = Callable[[str | None, str], int]

_log = logging.getLogger("headrace.kv")


class _Meters:
    def __init__(self, metrics: Metrics) -> None:
        label = ("replica",)
        self.state = metrics.gauge(
            "headrace_replica_kv_state",
            "Workers in which what is known of a replica's cache is exact, recovering or approx.",
            ("replica", "state"),
        )
        self.batches = metrics.counter(
            "headrace_kv_event_batches_total", "Batches of KV events that were received.", label
        )
        self.gaps = metrics.counter(
            "headrace_kv_event_gaps_total", "Times that batches of KV events were missing.", label
        )
        self.clears = metrics.counter(
            "headrace_kv_cache_clears_total",
            "Times that all that was known of a replica's cache was forgotten.",
            label,
        )
        self.odd = metrics.counter(
            "headrace_kv_events_odd_total",
            "KV events of a type that is not known, or malformed.",
            ("replica", "fault"),
        )
        self.left_out = metrics.counter(
            "headrace_kv_blocks_left_out_total",
            "Blocks of KV events that are not known: after an unknown one, with images, too many.",
            ("replica", "reason"),
        )
        self.lag = metrics.histogram(
            "headrace_kv_event_lag_seconds",
            "From a batch's publication to its receipt, by both hosts' clocks.",
            _LAG_BUCKETS,
        )

    def remove(self, replica_id: str) -> None:
        for trust in Trust:
            self.state.remove(replica_id, trust.value)
        for family in (self.batches, self.gaps, self.clears):
            family.remove(replica_id)
        for fault in ("unknown", "malformed"):
            self.odd.remove(replica_id, fault)
        for reason in _REASONS:
            self.left_out.remove(replica_id, reason)


class _Rank:
    """Is told of one rank."""

    def __init__(self, replica: _Replica, rank: int) -> None:
        self._replica = replica
        self._rank = rank

    def cleared(self) -> None:
        self._replica.cleared(self._rank)

    def happened(self, events: list[Event]) -> None:
        self._replica.cache.apply(self._rank, events)

    def counted(self, batch: Batch, lag_s: float) -> None:
        replica = self._replica
        meters = replica.meters
        meters.batches.labels(replica.id).inc()
        meters.lag.observe(max(lag_s, 0.0))
        replica.cache.late(lag_s)
        if batch.unknown:
            meters.odd.labels(replica.id, "unknown").inc(batch.unknown)
        if batch.malformed:
            meters.odd.labels(replica.id, "malformed").inc(batch.malformed)

    def missed(self) -> None:
        self._replica.meters.gaps.labels(self._replica.id).inc()

    def trusted(self, trust: Trust, why: str) -> None:
        self._replica.trusted(self._rank, trust, why)

    def gone(self) -> None:
        self.cleared()
        self._replica.gone(self._rank)


class _Replica:
    """One that may tell. `made_of`: what it was configured with."""

    def __init__(self, replica_id: str, made_of: Hashable, cache: ExactCache, meters: _Meters):
        self.id = replica_id
        self.made_of = made_of
        self.cache = cache
        self.meters = meters
        self.subscriber: Subscriber | None = None
        self._ranks: dict[int, Trust] = {}
        self._trust = Trust.APPROX
        self._ended = False
        self._left_out = dict.fromkeys(_REASONS, 0)
        self._show()

    def __repr__(self) -> str:
        return f"<_Replica {self.id} {self._trust.value}>"

    def end(self) -> None:
        """Whatever is still told concerns nobody."""
        self.cache.use(False)
        self._ended = True

    def trusted(self, rank: int, trust: Trust, why: str) -> None:
        self._ranks[rank] = trust
        self._judge(why)

    def gone(self, rank: int) -> None:
        self._ranks.pop(rank, None)
        self._judge("nobody tells of it")

    def _judge(self, why: str) -> None:
        """Of several ranks the least trusted counts."""
        if self._ended:
            return
        trusts = self._ranks.values()
        worst = next((one for one in Trust if one in trusts), Trust.APPROX)
        if worst is self._trust:
            return
        self.cache.use(worst is not Trust.APPROX)
        better = self._trust is Trust.APPROX or worst is Trust.EXACT
        level = logging.INFO if better else logging.WARNING
        _log.log(level, "replica %s: its cache is known %s: %s", self.id, _HOW[worst], why)
        self._trust = worst
        self._show()

    def cleared(self, rank: int) -> None:
        if not self._ended:
            self.meters.clears.labels(self.id).inc()
            self.cache.clear(rank)

    def review(self, now: float) -> None:
        if self.cache.review(now) and self.subscriber is not None:
            self.subscriber.due()
        left_out = self.cache.left_out()
        if left_out != self._left_out:
            for reason, count in left_out.items():
                self.meters.left_out.labels(self.id, reason).inc(count - self._left_out[reason])
            self._left_out = left_out

    def _show(self) -> None:
        for trust in Trust:
            self.meters.state.labels(self.id, trust.value).set(trust is self._trust)


_HOW = {
    Trust.EXACT: "by its events",
    Trust.RECOVERING: "by its events, some of which are missing",
    Trust.APPROX: "by what was sent there alone",
}


class KvIndex:
    """`place` tells where a replica's part of the index is (`Router.place`), `known` whether it is
    known for an engine, which may be asked where it publishes."""

    def __init__(
        self,
        place: Callable[[str], Place | None],
        known: Callable[[str], bool],
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._place = place
        self._known = known
        self._meters = _Meters(metrics)
        self._clock = clock
        self._replicas: dict[str, _Replica] = {}
        self._context: Context | None = None
        self._task: asyncio.Task[None] | None = None
        self._endings: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<KvIndex {list(self._replicas.values())}>"

    def start(self) -> None:
        """Follow those that `use` named."""
        # Made here and not before: its thread would be dead in a forked worker.
        self._context = zmq.Context()
        self._task = spawn(self._review(), "kv review")
        for replica in self._replicas.values():
            if replica.subscriber is not None:
                replica.subscriber.start(self._context)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for replica in self._replicas.values():
            self._end(replica)
        if self._endings:
            await asyncio.wait(self._endings)
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    def use(
        self,
        replicas: Iterable[ReplicaConfig],
        *,
        upstream: UpstreamConfig,
        contexts: Mapping[str, ssl.SSLContext],
        start_of: Callable[[str], Start | None],
        hashing: Hashable,
        block_tokens: int,
        tiers: Sequence[int] = (CPU,),
    ) -> None:
        """Follow these from now on, as far as they tell. `start_of` begins chains of a model's
        keys, `hashing` is what those are made with; `tiers` as `slowest` of an `ExactCache`. One
        that is reached and hashed as before is followed on."""
        before, self._replicas = self._replicas, {}
        for config in replicas:
            start = None if config.kv_source == "off" else start_of(config.model)
            if start is None:
                continue
            replica_id = config.replica.id
            reached = (config.url, config.protocol, config.tls, config.api_key, config.kv_source)
            whom = (config.model, config.data_parallel_rank)
            made_of = identity((reached, whom, upstream.timeouts, hashing, block_tokens, tiers))
            old = before.pop(replica_id, None)
            if old is not None and old.made_of == made_of:
                self._replicas[replica_id] = old
                continue
            if old is not None:
                self._end(old)
            cache = ExactCache(block_tokens, start, partial(self._place, replica_id), tiers)
            replica = _Replica(replica_id, made_of, cache, self._meters)
            replica.subscriber = Subscriber(
                config,
                upstream,
                contexts.get(replica_id),
                listen=partial(_Rank, replica),
                known=partial(self._known, replica_id),
                clock=self._clock,
            )
            self._replicas[replica_id] = replica
            if self._context is not None:
                replica.subscriber.start(self._context)
        for gone in before.values():
            self._end(gone)
            self._meters.remove(gone.id)

    def _end(self, replica: _Replica) -> None:
        replica.end()
        if replica.subscriber is not None:
            ending = spawn(replica.subscriber.close(), "kv close")
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)

    async def _review(self) -> None:
        while True:
            await asyncio.sleep(REVIEW_S)
            now = self._clock()
            for replica in self._replicas.values():
                replica.review(now)
