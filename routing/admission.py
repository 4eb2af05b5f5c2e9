"""Who waits while every replica has as much as it can do soon, and who is next. Pure.

Classes of priority are served strictly, the lowest number first. Within one, tenants share what
becomes free by their weights (start-time fair queueing over prompt tokens), and a tenant's
requests are in the order in which they came. Of the first `WINDOW` in that order whatever suits
the free replica best is taken. That would starve long prompts, which never suit best, so one turn
in `GUARD_EVERY` is the very first's, if it has waited for half its time. In more turns than that
prefixes would be lost, as under overload all have waited so long. And a request is refused at once
when its turn is predicted for after half its time: the prediction is of the mean, and those that
suit worst wait about twice as long. (Simulated: without that, long prompts are refused at their
deadlines four times as often as others.)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, islice
from typing import Any, NamedTuple, TypeVar

from core.claim import NOBODY, Claim
from routing.config import AdmissionConfig
from routing.fair_turns import in_turns
from routing.score import Wish

WINDOW = 32
AGE_WEIGHT = 0.1
"""Seconds of cost that a second of waiting makes up for."""
GUARD_EVERY = 32
_WORST_OVER_MEAN = 2.0
_LEAST_RETRY_S = 1.0
_MOST_RETRY_S = 60.0
_SMOOTHING = 0.1
_REMEMBERED_TENANTS = 1024
_PACE_HOLDS_S = 60.0

T = TypeVar("T")
Offer = Callable[["Waiter"], tuple[float, T] | None]
"""What it would cost in seconds to send a request off now, and where; None: it cannot go yet."""


class Refusal(NamedTuple):
    """Why a request is not kept waiting. `over_share`: its tenant has more than its part of the
    queue, so that it is told 429, otherwise 503. `retry_after_s`: until what waits is done."""

    reason: str
    over_share: bool
    retry_after_s: float


class Waiter:
    """One request. `tokens`: of its prompt, those to prefill wherever it goes; `needed`: KV
    tokens. `ticket` is whatever the one who performs hangs on to it."""

    __slots__ = (
        "claim",
        "deadline_at",
        "exclude",
        "needed",
        "number",
        "rank",
        "since",
        "size",
        "tenant",
        "ticket",
        "tokens",
        "wish",
    )

    def __init__(
        self,
        wish: Wish,
        *,
        needed: int,
        cached: int = 0,
        claim: Claim = NOBODY,
        exclude: Sequence[str] = (),
    ) -> None:
        self.wish = wish
        self.needed = needed
        self.tokens = max(wish[0] - cached, 1)
        self.claim = claim
        self.tenant, self.rank, self.size = claim.tenant, claim.priority, claim.size
        self.exclude = exclude
        self.number = 0
        self.since = self.deadline_at = 0.0
        self.ticket: Any = None

    def __repr__(self) -> str:
        return f"<Waiter {self.number} of {self.tenant!r}, {self.tokens} tokens>"


class _Line:
    """The requests of one tenant in one class, in order."""

    __slots__ = ("tokens", "waiters")

    def __init__(self) -> None:
        self.waiters: OrderedDict[int, Waiter] = OrderedDict()
        self.tokens = 0


class _Class:
    """The requests of one priority: by arrival, and by tenant."""

    __slots__ = ("arrivals", "lines", "tokens")

    def __init__(self) -> None:
        self.arrivals: OrderedDict[int, Waiter] = OrderedDict()
        self.lines: dict[str, _Line] = {}
        self.tokens = 0


class AdmissionQueue:
    """The requests for one model that wait, `bytes` in all. Seconds are of the caller's clock."""

    def __init__(self, config: AdmissionConfig) -> None:
        self.config = config
        self.bytes = 0
        self._classes: dict[int, _Class] = {}
        self._count = 0
        self._numbers = 0
        self._turns = 0
        self._virtual = 0.0
        self._used: dict[str, float] = {}
        self._pace_s = 0.0
        self._served_at: float | None = None
        self._paced_at: float | None = None

    def __repr__(self) -> str:
        return f"<AdmissionQueue {self._count} waiting, {self.bytes} bytes>"

    def __len__(self) -> int:
        return self._count

    @property
    def tokens(self) -> int:
        """To prefill, of all that wait."""
        return sum(rank.tokens for rank in self._classes.values())

    def age(self, now: float) -> float:
        """How long all together have waited, in seconds."""
        return sum(
            now - waiter.since
            for rank in self._classes.values()
            for waiter in rank.arrivals.values()
        )

    def enter(
        self, waiter: Waiter, now: float, rate: float, ahead_s: float = 0.0
    ) -> list[tuple[Waiter, Refusal]]:
        """`waiter` comes; those who must go instead are returned, maybe itself alone. `rate`: what
        all replicas prefill in a second; `ahead_s`: until the first of them has room."""
        config = self.config
        wait_s = config.deadline_of(waiter.rank)
        if _WORST_OVER_MEAN * self.predicted_wait(waiter, rate, ahead_s) > wait_s:
            return [(waiter, self._refusal("saturated_wait", waiter, rate, waiter))]
        evicted: list[tuple[Waiter, Refusal]] = []
        while (
            self._count >= config.max_waiting or self.bytes + waiter.size > config.max_waiting_bytes
        ):
            victim = self._victim(waiter)
            if victim is None:
                refusal = self._refusal("saturated_queue_full", waiter, rate, waiter)
                return [*evicted, (waiter, refusal)]
            evicted.append((victim, self._refusal("saturated_queue_full", victim, rate, waiter)))
            self.leave(victim)
        if not self._count and now - (self._paced_at or now) > _PACE_HOLDS_S:
            self._pace_s = 0.0
        self._numbers += 1
        waiter.number = self._numbers
        waiter.since, waiter.deadline_at = now, now + wait_s
        rank = self._classes.setdefault(waiter.rank, _Class())
        line = rank.lines.setdefault(waiter.tenant, _Line())
        rank.arrivals[waiter.number] = line.waiters[waiter.number] = waiter
        rank.tokens += waiter.tokens
        line.tokens += waiter.tokens
        self._count += 1
        self.bytes += waiter.size
        return evicted

    def leave(self, waiter: Waiter) -> None:
        """It waits no more, whyever. Idempotent."""
        rank = self._classes.get(waiter.rank)
        if rank is None or rank.arrivals.pop(waiter.number, None) is None:
            return
        line = rank.lines[waiter.tenant]
        del line.waiters[waiter.number]
        line.tokens -= waiter.tokens
        rank.tokens -= waiter.tokens
        self._count -= 1
        self.bytes -= waiter.size
        if not line.waiters:
            del rank.lines[waiter.tenant]
        if not rank.arrivals:
            del self._classes[waiter.rank]
        if not self._count:
            self._virtual, self._served_at = 0.0, None
            self._used.clear()

    def serve(self, waiter: Waiter, now: float) -> None:
        """It has been sent off: it leaves, and its tenant's share is charged."""
        self._turns += 1
        tenant = waiter.tenant
        start = max(self._virtual, self._used.get(tenant, 0.0))
        self._virtual = start
        self._used[tenant] = start + waiter.tokens / self.config.weight_of(tenant)
        if len(self._used) > _REMEMBERED_TENANTS:
            self._used = {name: used for name, used in self._used.items() if used > start}
        if self._served_at is not None:
            self._pace_s += _SMOOTHING * (now - self._served_at - self._pace_s)
        self._served_at = self._paced_at = now
        self.leave(waiter)

    def overdue(self, now: float, rate: float) -> list[tuple[Waiter, Refusal]]:
        """Those whose deadline has passed; they leave."""
        late = []
        for rank in list(self._classes.values()):
            while rank.arrivals:
                first = next(iter(rank.arrivals.values()))
                if first.deadline_at > now:
                    break
                late.append((first, self._refusal("saturated", first, rate)))
                self.leave(first)
        return late

    def next(self, offer: Offer[T], now: float) -> tuple[Waiter, T] | None:
        """Who goes now, and where; None if nobody can. Changes nothing."""
        guarded = self._turns % GUARD_EVERY == 0
        for priority in sorted(self._classes):
            window = list(islice(self._in_order(priority), WINDOW))
            # Nobody gets ahead of whose turn it is merely by having come in a flood before.
            since = list(accumulate([waiter.since for waiter in reversed(window)], min))
            best: tuple[float, Waiter, T] | None = None
            for place, waiter in enumerate(window):
                offered = offer(waiter)
                if offered is None:
                    continue
                cost, where = offered
                if place == 0 and guarded and self._has_waited(waiter, now):
                    return waiter, where
                cost -= AGE_WEIGHT * (now - since[-1 - place])
                if best is None or cost < best[0]:
                    best = cost, waiter, where
            if best is not None:
                return best[1], best[2]
        return None

    @staticmethod
    def _has_waited(waiter: Waiter, now: float) -> bool:
        """For half its time."""
        return 2 * (now - waiter.since) >= waiter.deadline_at - waiter.since

    def predicted_wait(self, waiter: Waiter, rate: float, ahead_s: float) -> float:
        """Seconds until `waiter`, who has not entered, would be sent off."""
        if not self._count:
            return ahead_s
        tokens = count = 0.0
        for priority, rank in self._classes.items():
            if priority < waiter.rank:
                tokens += rank.tokens
                count += len(rank.arrivals)
            elif priority == waiter.rank:
                # While its own turn comes up, others get what their weights allow.
                own, weight_of = rank.lines.get(waiter.tenant), self.config.weights.get
                before = waiter.tokens + (0 if own is None else own.tokens)
                turn = before / weight_of(waiter.tenant, 1.0)
                shares = [
                    line.tokens if line.tokens < (most := turn * weight_of(tenant, 1.0)) else most
                    for tenant, line in rank.lines.items()
                ]
                tokens += sum(shares)
                if self._pace_s:
                    lines = zip(rank.lines.values(), shares, strict=True)
                    count += sum([len(one.waiters) * share / one.tokens for one, share in lines])
        return ahead_s + max(tokens / rate, count * self._pace_s)

    def drain_s(self, rate: float) -> float:
        """Seconds until all that wait now are sent off, as far as can be told."""
        seconds = max(self.tokens / rate, self._count * self._pace_s)
        return min(max(seconds, _LEAST_RETRY_S), _MOST_RETRY_S)

    def _in_order(self, priority: int) -> Iterator[Waiter]:
        """The waiters of a class, tenants taking turns by their weights."""
        rank = self._classes[priority]
        weight_of = self.config.weight_of
        return in_turns(rank.arrivals, rank.lines, self._used, self._virtual, weight_of)

    def _victim(self, arriving: Waiter) -> Waiter | None:
        """Who makes room: the newest of whoever has most of the queue for its weight, in the last
        class. None: the one who comes has more, or comes last."""
        last = max(self._classes, default=arriving.rank)
        if last < arriving.rank or not self._count:
            return None
        lines = self._classes[last].lines
        shares = {name: line.tokens / self.config.weight_of(name) for name, line in lines.items()}
        most = max(shares, key=lambda name: (shares[name], name))
        if last == arriving.rank:
            own = lines.get(arriving.tenant)
            tokens = arriving.tokens + (0 if own is None else own.tokens)
            weight = self.config.weight_of(arriving.tenant)
            if most == arriving.tenant or tokens / weight >= shares[most]:
                return None
        return lines[most].waiters[next(reversed(lines[most].waiters))]

    def _refusal(
        self, reason: str, waiter: Waiter, rate: float, arriving: Waiter | None = None
    ) -> Refusal:
        over = self._over_share(waiter.tenant, arriving)
        return Refusal("tenant_over_share" if over else reason, over, self.drain_s(rate))

    def _over_share(self, tenant: str, arriving: Waiter | None) -> bool:
        """Whether it has more of the waiting tokens than its weight is of the weights."""
        names = set() if arriving is None else {arriving.tenant}
        own = total = 0
        if arriving is not None:
            total = arriving.tokens
            own = total if arriving.tenant == tenant else 0
        for rank in self._classes.values():
            names.update(rank.lines)
            total += rank.tokens
            if (line := rank.lines.get(tenant)) is not None:
                own += line.tokens
        weights = sum(map(self.config.weight_of, names)) if self.config.weights else len(names)
        return own * weights > self.config.weight_of(tenant) * total
