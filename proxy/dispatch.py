"""One prompt to one replica, and to another one while the client has seen nothing.

Each try borrows a lease and a connection and gives both back on every way out. A retry needs a
retryable failure, an unstarted answer, a try left and room in the budget; a reused connection
that was reset before any response byte gets one fresh one besides, because a replica closes idle
connections at the very moment at which we use them (RFC 9112 section 9.3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from core.claim import NOBODY, Claim
from core.clock import Clock
from core.errors import GatewayError, RateLimited, Unavailable, UpstreamError, UpstreamReset
from core.exchange import Exchange, Header
from core.metrics import Metrics
from core.prompt import Prompt
from core.replica import Replica
from proxy.access_log import AccessRecord, milliseconds
from proxy.flow import Watchdog
from proxy.headers import with_traceparent
from proxy.phases import server_timing
from proxy.relay import Relay, RelayTimeouts, Upstream
from proxy.surfaces.openai import OPENAI
from proxy.surfaces.shape import Shape
from proxy.turns import LARGE_BYTES, next_pass

_MOST_TOKENS = 2**31  # beyond what any exchange can use: such a count is a fault


class Lease(AbstractContextManager["Lease"], Protocol):
    """A replica held for one exchange. `outlived`: it has left the configuration since."""

    @property
    def replica(self) -> Replica: ...

    @property
    def predicted_cached(self) -> int: ...

    @property
    def predicted_first_token_s(self) -> float: ...

    @property
    def outlived(self) -> bool: ...

    def explain(self) -> str:
        """Why it is this replica, in one line."""

    def first_token(self, now: float) -> None: ...

    def settle(
        self, *, prompt_tokens: int, cached_tokens: int | None, output_tokens: int
    ) -> None: ...


class TokenEstimates(Protocol):
    """What is known of a model's answers, for those that come without usage."""

    def learn(self, model: str, events: int, tokens: int) -> None: ...

    def tokens(self, model: str, events: int) -> int: ...


class Router(Protocol):
    async def lease(
        self,
        *,
        model: str,
        prompt: Prompt,
        max_output_tokens: int | None,
        exclude: Sequence[str] = (),
        claim: Claim,
        enter: Callable[[str, float], None],
    ) -> Lease: ...


class UpstreamConnection(Upstream, Protocol):
    @property
    def reused(self) -> bool: ...

    def send(
        self, method: bytes, path: bytes, headers: Sequence[Header], body: bytes, handler: Relay
    ) -> None: ...


class Pool(Protocol):
    async def connect(self, replica_id: str, fresh: bool = False) -> UpstreamConnection: ...


class Health(Protocol):
    def succeeded(self, replica_id: str) -> None: ...

    def failed(self, replica_id: str, error: UpstreamError) -> None: ...


class Budget(Protocol):
    def started(self, now: float) -> None: ...

    def take(self, now: float) -> bool: ...


@dataclass(slots=True)
class Delivery:
    """What is sent upstream, and what came of it. Token counts are the replica's own where it
    reported them; otherwise output is estimated from events, of which the first `empty_events` hold
    no content (a chat begins with the role alone, of each choice). `exclude`: replicas that are not
    asked. `explained`: the answer says why it is from there. `seeking`: a replica that answers 404
    raises NotFound. `raw`: the answer is of any kind. `on_start` is told which replica answers.
    `begun`: the replica produced output. `usage_known`: it reported its counts. `relay`: the try
    that is running."""

    path: bytes
    headers: Sequence[Header]
    body: bytes
    prompt: Prompt
    max_output_tokens: int | None
    stream: bool
    strip_usage: bool
    own_headers: Sequence[Header]
    claim: Claim = NOBODY
    empty_events: int = 0
    shape: Shape = OPENAI
    method: bytes = b"POST"
    exclude: Sequence[str] = ()
    seeking: bool = False
    raw: bool = False
    on_start: Callable[[str], None] | None = None
    limit_headers: Sequence[Header] = ()
    explained: bool = False
    begun: bool = False
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    output_tokens: int = 0
    usage_known: bool = False
    failure: str | None = None
    relay: Relay | None = None

    def take_stock(
        self, usage: dict[str, Any] | None, content_events: int, estimates: TokenEstimates
    ) -> None:
        """Note the final counts of a try that began, and learn from those that are known."""
        model, events = self.prompt.model, max(0, content_events - self.empty_events)
        output_tokens = -1 if usage is None else _count(usage.get("completion_tokens"), -1)
        self.usage_known = output_tokens >= 0
        if self.usage_known:
            if self.max_output_tokens != 0:  # where nothing is generated there is nothing to learn
                estimates.learn(model, events, output_tokens)
        else:
            output_tokens = estimates.tokens(model, events)
        self.prompt_tokens, self.output_tokens = self.prompt.length, output_tokens
        if usage is None:
            return
        self.prompt_tokens = _count(usage.get("prompt_tokens"), self.prompt.length)
        details = usage.get("prompt_tokens_details")
        cached = _count(details.get("cached_tokens"), -1) if isinstance(details, dict) else -1
        self.cached_tokens = None if cached < 0 else min(cached, self.prompt_tokens)


def _count(value: object, otherwise: int) -> int:
    # `type`, because True is an int too.
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else otherwise


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
        watchdog: Watchdog,
        estimates: TokenEstimates,
        clock: Clock,
        metrics: Metrics,
        server_timing: bool = True,
        bases: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`bases`: of models without replicas of their own those whose replicas serve them."""
        self._router = router
        self._pool = pool
        self._health = health
        self._budget = budget
        self._max_tries = max_tries
        self._timeouts = timeouts
        self._watchdog = watchdog
        self._estimates = estimates
        self._now = clock
        self._server_timing = server_timing
        self._bases = bases
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
            replica_id = record.replica = lease.replica.id
            try:
                with lease:
                    await self._try(exchange, delivery, record, lease, fresh)
                self._note_outcome(lease, delivery, record)
                return
            except UpstreamError as error:
                failure, failed_in = error, record.phase
                reset = isinstance(error, UpstreamReset) and error.reused and not error.answered
                if reset and not refreshed and not exchange.started:
                    refreshed = fresh = True
                    tries -= 1
                    self._retries.labels("stale_connection").inc()
                    continue
                if not lease.outlived:
                    self._health.failed(replica_id, error)
                    excluded.append(replica_id)
                if not self._may_retry(exchange, error, tries):
                    raise
                fresh = False
                self._retries.labels(error.reason).inc()

    async def _try(
        self,
        exchange: Exchange,
        delivery: Delivery,
        record: AccessRecord,
        lease: Lease,
        fresh: bool,
    ) -> None:
        if len(delivery.body) >= LARGE_BYTES:
            await next_pass()  # choosing and sending are two steps
        record.enter("connect", self._now())
        record.predicted_cached_tokens = lease.predicted_cached
        connection = await self._pool.connect(lease.replica.id, fresh)
        record.enter("first_token", self._now())
        own_headers = [*delivery.own_headers, *delivery.limit_headers]

        def on_first_event(now: float) -> None:
            delivery.begun = True
            if delivery.on_start is not None:
                delivery.on_start(lease.replica.id)
            lease.first_token(now)
            record.enter("relay", now)
            if delivery.explained:
                own_headers.append((b"x-headrace-route", lease.explain().encode("utf-8")))
            if self._server_timing:
                own_headers.append((b"server-timing", server_timing(record.spent or {})))
            record.ttft_ms = milliseconds(now - exchange.request.received_at)
            record.first_event_at = now

        relay = Relay(
            exchange,
            stream=delivery.stream,
            strip_usage=delivery.strip_usage,
            own_headers=own_headers,
            on_first_event=on_first_event,
            timeouts=self._timeouts,
            shape=delivery.shape,
            seeking=delivery.seeking,
            raw=delivery.raw,
            predicted_s=lease.predicted_first_token_s,
        )
        delivery.relay = relay
        self._watchdog.add(relay)
        try:
            connection.send(delivery.method, delivery.path, delivery.headers, delivery.body, relay)
            await relay.wait(connection)
        finally:
            connection.abort()  # of no effect after a complete answer
            self._watchdog.discard(relay)
            delivery.relay = None
            record.status = relay.status if exchange.started else record.status
            delivery.failure = relay.upstream_failure
            record.first_events_at = relay.first_events_at
            if delivery.begun:
                delivery.take_stock(relay.usage, relay.content_events, self._estimates)
                lease.settle(
                    prompt_tokens=delivery.prompt_tokens,
                    cached_tokens=delivery.cached_tokens,
                    output_tokens=delivery.output_tokens,
                )

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
