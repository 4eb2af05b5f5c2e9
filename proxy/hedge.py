"""A second try beside a first one that is late: whoever answers first has won.

Only while the client was sent nothing. The winner is found where a relay is about to send its
first byte: at that moment, in the same call, the other one is failed, so that two never write. The
first try runs in the task of the exchange, the second in one of its own that does not outlive it.
Both hold a lease; what is charged to the caller is what the winner used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence

from core.clock import Clock
from core.errors import GatewayError, Outrun, UpstreamError
from core.exchange import Exchange
from core.metrics import Metrics
from core.tasks import spawn
from proxy.delivery import Delivery
from proxy.flow import NEVER, Watchdog
from proxy.lateness import Lateness
from proxy.relay import Relay
from proxy.upstreams import Budget, Lease, Router

Attempt = Callable[[Lease, "Race"], Coroutine[None, None, None]]
Blame = Callable[[Lease, UpstreamError], None]


class Hedging:
    """Decides whether a late request gets a second try."""

    def __init__(
        self,
        *,
        router: Router,
        lateness: Lateness,
        budget: Budget,
        watchdog: Watchdog,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._router = router
        self._lateness = lateness
        self._budget = budget
        self.watchdog = watchdog
        self.now = clock
        results = metrics.counter(
            "headrace_hedges_total",
            "Second tries beside a late one, by what came of them.",
            ("result",),
        )
        self.won, self.lost = results.labels("won"), results.labels("lost")
        self.failed, self.refused = results.labels("failed"), results.labels("refused")

    def __repr__(self) -> str:
        return f"<Hedging {self._lateness}>"

    def race(
        self, exchange: Exchange, delivery: Delivery, lease: Lease, attempt: Attempt, blame: Blame
    ) -> Race:
        """For the try that `lease` is for; `attempt` makes the other one."""
        self._budget.started(self.now())
        after_s = self._lateness.after_s(delivery.prompt.model, lease.predicted_first_token_s)
        return Race(self, exchange, delivery, lease, after_s=after_s, attempt=attempt, blame=blame)

    def observed(self, model: str, seconds: float) -> None:
        self._lateness.observed(model, seconds)

    def second(self, model: str, delivery: Delivery, exclude: Sequence[str]) -> Lease | None:
        """A replica for the second try, or None: others wait, there is no other, or no budget."""
        lease = None
        if not self._router.queues and self._budget.take(self.now()):
            try:
                lease = self._router.pick(
                    model=model,
                    prompt=delivery.prompt,
                    max_output_tokens=delivery.max_output_tokens,
                    exclude=exclude,
                )
            except GatewayError:
                lease = None
        if lease is None:
            self.refused.inc()
        return lease


class Race:
    """One answer, and up to two tries to give it. `lease` is that of the try which has answered,
    the first one's until then. Watched: `deadline_at` is when the second one begins."""

    __slots__ = (
        "_attempt",
        "_began_at",
        "_blame",
        "_delivery",
        "_exchange",
        "_failure",
        "_first",
        "_hedging",
        "_runners",
        "_task",
        "deadline_at",
        "exclude",
        "lease",
        "winner",
    )

    def __init__(
        self,
        hedging: Hedging,
        exchange: Exchange,
        delivery: Delivery,
        lease: Lease,
        *,
        after_s: float,
        attempt: Attempt,
        blame: Blame,
    ) -> None:
        self._hedging = hedging
        self._exchange = exchange
        self._delivery = delivery
        self._first = self.lease = lease
        self._attempt = attempt
        self._blame = blame
        self._began_at = hedging.now()
        self.deadline_at = self._began_at + after_s
        self.exclude: Sequence[str] = ()
        self.winner: Relay | None = None
        self._runners: list[tuple[Relay, Lease]] = []
        self._task: asyncio.Task[None] | None = None
        self._failure: GatewayError | None = None

    def __repr__(self) -> str:
        return f"<Race of {len(self._runners)}, winner {self.winner}>"

    def is_second(self, lease: Lease) -> bool:
        return lease is not self._first

    def decided_for(self, lease: Lease) -> bool:
        """Whether the try of `lease` is the one that has answered."""
        return self.winner is not None and self.lease is lease

    def on_deadline(self, now: float) -> None:
        self.deadline_at = NEVER
        if self.winner is not None or self._exchange.started or self._exchange.gone:
            return
        first = self._first.replica
        exclude = [*self.exclude, first.id]
        lease = self._hedging.second(first.model, self._delivery, exclude)
        if lease is not None:
            self._task = spawn(self._run_second(lease), "hedge")

    def enter(self, relay: Relay, lease: Lease) -> None:
        """`relay` takes part in what is not yet decided."""
        relay.on_commit = self.won
        self._runners.append((relay, lease))

    def won(self, winner: Relay) -> None:
        """`winner` is about to send its first byte: the other one ends at once."""
        self.winner = self._delivery.relay = winner
        self.deadline_at = NEVER
        hedging = self._hedging
        hedging.observed(self._delivery.prompt.model, hedging.now() - self._began_at)
        for relay, lease in self._runners:
            relay.on_commit = None
            if relay is winner:
                self.lease = lease
            else:
                relay.fail(Outrun("Another replica has answered."))
        if self._task is None or self._failure is not None:
            return
        if self.is_second(self.lease):
            hedging.won.inc()
        else:
            hedging.lost.inc()
            self._task.cancel()  # it may not have a connection yet

    async def run(self, first: Awaitable[None]) -> None:
        """Until the answer is complete; leases are given back. Raises what ended the try of
        `lease`."""
        watchdog = self._hedging.watchdog
        watchdog.add(self)
        try:
            with self._first:
                await first
        except Outrun:
            await self._follow()
        except UpstreamError as error:
            if self._task is None or self.decided_for(self._first):
                raise
            self._blame(self._first, error)
            await self._follow()
            if self.winner is None:
                raise
        finally:
            watchdog.discard(self)
            self._runners.clear()
            if self._task is not None and not self._task.done():
                self._task.cancel()
                await asyncio.wait([self._task])

    async def _follow(self) -> None:
        """The second try alone is left."""
        assert self._task is not None
        await self._task
        if self.winner is not None and self._failure is not None:
            raise self._failure

    async def _run_second(self, lease: Lease) -> None:
        try:
            with lease:
                await self._attempt(lease, self)
        except Outrun:
            pass
        except GatewayError as error:
            self._failure = error
            if not self.decided_for(lease):
                self._hedging.failed.inc()
                if isinstance(error, UpstreamError):
                    self._blame(lease, error)
