"""One prompt to one replica, and to another one while the client has seen nothing.

Each try borrows a lease and a connection and gives both back on every way out. A retry needs a
retryable failure, an unstarted answer, a try left and room in the budget; a reused connection
that was reset before any response byte gets one fresh one besides, because a replica closes idle
connections at the very moment at which we use them (RFC 9112 section 9.3.1).
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Literal, NamedTuple

from core.clock import Clock
from core.errors import GatewayError, Outrun, RateLimited, Unavailable, UpstreamError, UpstreamReset
from core.exchange import Exchange, Header
from core.metrics import Metrics
from proxy.access_log import AccessRecord, milliseconds
from proxy.delivery import Delivery, TokenEstimates
from proxy.flow import RelayTimeouts, Watchdog
from proxy.headers import with_traceparent
from proxy.heartbeats import Heartbeats
from proxy.hedge import Hedging, Race
from proxy.phases import server_timing, spent_in
from proxy.prefills import Prefills
from proxy.relay import Relay
from proxy.token_gaps import GapMeters, StreamGaps
from proxy.token_ids import HandOver
from proxy.tracing.ticks import Ticks
from proxy.turns import LARGE_BYTES, next_pass
from proxy.upstreams import Budget, Health, Lease, Pool, Router


def _in_time(delivery: Delivery, left_s: float, lease: Lease) -> Sequence[Header]:
    """The headers for the replica, with what is left of the budget. Raises Unavailable when it is
    predicted not to be enough, where that is asked for."""
    late_s = lease.predicted_first_token_s - left_s
    if late_s > 0 and delivery.refuse_late:
        raise Unavailable(
            "The first token is predicted to come later than it is due.",
            code="budget_exceeded",
            retry_after_s=late_s,
        )
    return [*delivery.headers, (b"x-headrace-budget-ms", b"%d" % max(left_s * 1e3, 0))]


def _all_timings(record: AccessRecord, now: Clock) -> bytes:
    """A comment for the end of a stream (SSE section 9.2.6): what each phase took, to the last."""
    record.enter("relay", now())
    return b": server-timing " + server_timing(spent_in(record.trail), record.tls_resumed) + b"\n\n"


class _Job(NamedTuple):
    """What all tries for one answer share. `record`: where the answer is noted."""

    exchange: Exchange
    delivery: Delivery
    record: AccessRecord


class Dispatcher:
    """Leases, connects, relays, and tries again where that is allowed."""

    def __init__(
        self,
        *,
        router: Router,
        pool: Pool,
        health: Health,
        budget: Budget,
        max_tries: int,
        timeouts: RelayTimeouts,
        heartbeats: Heartbeats | None = None,
        watchdog: Watchdog,
        estimates: TokenEstimates,
        clock: Clock,
        metrics: Metrics,
        server_timing: Literal["asked", "always", "off"] = "asked",
        bases: Mapping[str, str] = MappingProxyType({}),
        prefills: Prefills | None = None,
        hedging: Hedging | None = None,
        hand_over: HandOver | None = None,
        gaps: GapMeters | None = None,
    ) -> None:
        """`bases`: of models without replicas of their own those whose replicas serve them.
        `prefills`: None where every replica prefills by itself. `hedging`: None where a late
        request gets no second try. `hand_over`: None where every replica gets texts. `gaps`: those
        of the worker."""
        self._router = router
        self._pool = pool
        self._health = health
        self._budget = budget
        self._max_tries = max_tries
        self._timeouts = timeouts
        self._heartbeats = heartbeats
        self._watchdog = watchdog
        self._estimates = estimates
        self._now = clock
        self._server_timing = server_timing
        self._bases = bases
        self._prefills = prefills
        self._hedging = hedging
        self._hand_over = hand_over
        self._gaps = gaps or GapMeters(metrics)
        self._retries = metrics.counter(
            "headrace_retries_total", "Tries beyond the first, by the failure before", ("reason",)
        )

    def __repr__(self) -> str:
        return f"<Dispatcher max_tries={self._max_tries}>"

    async def deliver(self, exchange: Exchange, delivery: Delivery, record: AccessRecord) -> None:
        """Answer `exchange`, or raise the failure that no further try can mend."""
        self._budget.started(self._now())
        if record.trace is not None:
            delivery.headers = with_traceparent(delivery.headers, record.trace.header)
        job = _Job(exchange, delivery, record)
        excluded = [*delivery.exclude]
        fresh = False
        refreshed = False
        tries = 0
        failure: GatewayError | None = None
        failed_in: str | None = None
        while True:
            record.enter("route", self._now())
            try:
                lease = await self._router.lease(
                    model=self._bases.get(delivery.prompt.model, delivery.prompt.model),
                    prompt=delivery.prompt,
                    max_output_tokens=delivery.max_output_tokens,
                    exclude=excluded,
                    claim=delivery.claim,
                    enter=record.enter,
                )
            except (Unavailable, RateLimited):
                if failure is None:
                    raise
                record.phase = failed_in
                raise failure from None  # the replica's own words say more
            tries += 1
            record.tries = tries
            record.replica = lease.replica.id
            race = self._race(job, lease, excluded)
            try:
                first = self._try(job, lease, fresh, race)
                if race is None:
                    with lease:
                        await first
                else:
                    await race.run(first)
                self._note_outcome(lease if race is None else race.lease, delivery, record)
                return
            except UpstreamError as error:
                if race is not None:
                    lease = race.lease
                failure, failed_in = error, record.phase
                reset = isinstance(error, UpstreamReset) and error.reused and not error.answered
                if reset and not refreshed and not exchange.started:
                    refreshed = fresh = True
                    tries -= 1
                    self._retries.labels("stale_connection").inc()
                    continue
                self._blame(excluded, lease, error)
                if not self._may_retry(exchange, error, tries):
                    raise
                fresh = False
                self._retries.labels(error.reason).inc()

    def _race(self, job: _Job, lease: Lease, excluded: list[str]) -> Race | None:
        exchange, delivery, record = job
        # A leg elsewhere takes its time before there is anything to race with.
        if self._hedging is None or not delivery.stream or self._prefills is not None:
            return None

        def attempt(second: Lease, race: Race) -> Coroutine[None, None, None]:
            record.tries = (record.tries or 0) + 1
            return self._try(job, second, False, race)

        blame = partial(self._blame, excluded)
        race = self._hedging.race(exchange, delivery, lease, attempt, blame)
        race.exclude = excluded
        return race

    def _blame(self, excluded: list[str], lease: Lease, error: UpstreamError) -> None:
        """A try failed: its replica is not tried again."""
        replica_id = lease.replica.id
        if not lease.outlived and replica_id not in excluded:
            self._health.failed(replica_id, error)
            excluded.append(replica_id)

    async def _try(self, job: _Job, lease: Lease, fresh: bool, race: Race | None) -> None:
        _, delivery, record = job
        second = race is not None and race.is_second(lease)
        if second:  # what comes before an answer is noted of the first try
            record = AccessRecord(request_id=record.request_id)
        if len(delivery.body) >= LARGE_BYTES:
            await next_pass()  # choosing and sending are two steps
        now = self._now()
        record.enter("connect", now)
        headers = delivery.headers
        if delivery.first_token_by is not None:
            headers = _in_time(delivery, delivery.first_token_by - now, lease)
        record.predicted_cached_tokens = lease.predicted_cached
        body, cached_elsewhere = delivery.body, None
        if self._prefills is not None:
            record.enter("first_token", now)
            body, cached_elsewhere = await self._prefills.prepare(
                lease.replica.model, delivery, lease, record
            )
            record.enter("connect", self._now())
        if self._hand_over is not None and body is delivery.body:
            body = self._hand_over.body(lease.replica.id, delivery)
        connection = await self._pool.connect(lease.replica.id, fresh)
        if race is not None and race.winner is not None:
            connection.abort()
            raise Outrun("Another replica has answered.")
        record.enter("first_token", self._now())
        relay = self._relay(job, lease, second)
        if not second:
            delivery.relay = relay
        self._watchdog.add(relay)
        try:
            if race is not None:
                race.enter(relay, lease)
            connection.send(delivery.method, delivery.path, headers, body, relay)
            await relay.wait(connection)
        finally:
            connection.abort()  # of no effect after a complete answer
            self._watchdog.discard(relay)
            if race is None or race.winner in (None, relay):
                self._take_stock(job, lease, relay, cached_elsewhere)

    def _relay(self, job: _Job, lease: Lease, second: bool) -> Relay:
        exchange, delivery, record = job
        own_headers = [*delivery.own_headers, *delivery.limit_headers]
        asked = exchange.request.header(b"x-headrace-timing")
        gaps, clock = self._gaps.of(record.model or delivery.prompt.model), self._now
        if record.trace is not None:
            clock = record.trace.ticks = Ticks(clock)

        def on_first_event(now: float) -> None:
            if second:
                record.replica = lease.replica.id
                record.predicted_cached_tokens = lease.predicted_cached
            delivery.begun = True
            if delivery.on_start is not None:
                delivery.on_start(lease.replica.id)
            lease.first_token(now)
            record.enter("relay", now)
            if delivery.explained:
                own_headers.append((b"x-headrace-route", lease.explain().encode("utf-8")))
            if self._tells_timing(asked):
                spent = spent_in(record.trail)
                own_headers.append((b"server-timing", server_timing(spent, record.tls_resumed)))
            record.ttft_ms = milliseconds(now - exchange.request.received_at)
            record.first_event_at = now

        relay = Relay(
            exchange,
            stream=delivery.stream,
            strip_usage=delivery.strip_usage,
            own_headers=own_headers,
            on_first_event=on_first_event,
            timeouts=self._timeouts,
            heartbeats=self._heartbeats,
            shape=delivery.shape,
            seeking=delivery.seeking,
            raw=delivery.raw,
            predicted_s=lease.predicted_first_token_s,
            gaps=StreamGaps(gaps, clock),
        )
        if asked == b"full" and delivery.stream:
            relay.last_words = partial(_all_timings, record, self._now)
        return relay

    def _take_stock(
        self, job: _Job, lease: Lease, relay: Relay, cached_elsewhere: int | None
    ) -> None:
        """The try of `relay` has ended, and no other one has answered."""
        exchange, delivery, record = job
        if delivery.relay is relay:
            delivery.relay = None
        record.status = relay.status if exchange.started else record.status
        delivery.failure = relay.upstream_failure
        record.first_events_at = relay.first_events_at
        if delivery.begun:
            delivery.take_stock(relay.usage, relay.content_events, self._estimates)
            if cached_elsewhere is not None:  # what was fetched is not what was saved
                delivery.cached_tokens = cached_elsewhere
            lease.settle(
                prompt_tokens=delivery.prompt_tokens,
                cached_tokens=delivery.cached_tokens,
                output_tokens=delivery.output_tokens,
            )

    def _tells_timing(self, asked: bytes | None) -> bool:
        """`asked`: the value of the client's header, if it has sent one."""
        when = self._server_timing
        return when == "always" or (asked is not None and when == "asked")

    def relayed_tokens(self, delivery: Delivery) -> int:
        """About how many tokens of output the client was sent so far."""
        relay = delivery.relay
        events = 0 if relay is None else relay.content_events - delivery.empty_events
        return self._estimates.tokens(delivery.prompt.model, max(0, events))

    def _note_outcome(self, lease: Lease, delivery: Delivery, record: AccessRecord) -> None:
        """An error that was passed on is a failure all the same: of the replica, unless it says
        that the request is at fault."""
        status = record.status or 0
        if delivery.failure is not None:
            record.reason = "upstream_error_event"
        elif status >= 400:
            record.reason = f"upstream_status_{status}"
        if lease.outlived:
            return
        if delivery.failure is None and status < 500:
            self._health.succeeded(lease.replica.id)
        else:
            self._health.failed(lease.replica.id, UpstreamError("It answered with an error."))

    def _may_retry(self, exchange: Exchange, error: UpstreamError, tries: int) -> bool:
        return (
            error.retryable
            and not exchange.started
            and tries < self._max_tries
            and self._budget.take(self._now())
        )
