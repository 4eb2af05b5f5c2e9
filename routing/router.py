"""Picks a replica for a request and charges it in the same step.

Performs only in that it reads a clock; there is no await between pick and charge, so concurrent
requests never decide on the same stale picture.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from core.clock import Clock
from core.errors import Unavailable
from core.metrics import Metrics
from core.prompt import Prompt
from core.replica import Load, Replica
from routing.config import RoutingConfig
from routing.fleet import ModelFleet
from routing.host import Host
from routing.index import PrefixIndex, Target
from routing.lease import Lease
from routing.ledger import Ledger
from routing.member import Member
from routing.meters import RouterMeters
from routing.policy import make_policy
from routing.score import queue_seconds, work_tokens

_UNPROVEN_IN_FLIGHT = 4
_NO_REPLICA_RETRY_S = 2.0
_FULL_RETRY_S = 1.0
_SMOOTHING = 0.05
_FADE_BLOCKS = 20_000


class Fleet(Protocol):
    """Who may get requests now, and what each last reported."""

    def candidates(self, model: str) -> Sequence[Replica]: ...

    def load(self, replica_id: str) -> Load | None: ...


class Router:
    """Leases replicas. All state is this worker's own but for what it shares with the `host`."""

    def __init__(
        self,
        config: RoutingConfig,
        fleet: Fleet,
        metrics: Metrics,
        clock: Clock,
        host: Host | None = None,
    ) -> None:
        self._config = config
        self._fleet = fleet
        self.clock = clock
        self._host = host
        self._ledger = Ledger() if host is None else host.ledger
        self.index = PrefixIndex(config.index_entries) if host is None else host.index
        self._policy = make_policy(config, self.index)
        self._fading: list[PrefixIndex] = []
        self._models: dict[str, ModelFleet] = {}
        self._knee = float(config.attention_knee_tokens)
        self._picks = 0
        self._meters = RouterMeters(metrics)
        self._decided = self._meters.decided
        self.underflow = self._meters.underflow

    def __repr__(self) -> str:
        return f"<Router {self._policy} {self._models}>"

    async def lease(
        self,
        *,
        model: str,
        prompt: Prompt,
        max_output_tokens: int | None,
        exclude: Collection[str] = (),
    ) -> Lease:
        """The best replica for `prompt`, charged. Raises Unavailable, with the reason as `code`,
        when none is eligible."""
        return self.pick(
            model=model, prompt=prompt, max_output_tokens=max_output_tokens, exclude=exclude
        )

    def pick(
        self,
        *,
        model: str,
        prompt: Prompt,
        max_output_tokens: int | None,
        exclude: Collection[str] = (),
    ) -> Lease:
        """As `lease`."""
        if self._host is None:
            return self._pick(model, prompt, max_output_tokens, exclude)
        lock = self._host.lock
        taken = lock.take()
        if not taken:
            self._meters.unlocked()
        try:
            return self._pick(model, prompt, max_output_tokens, exclude)
        finally:
            if taken:
                lock.give()

    def _pick(
        self, model: str, prompt: Prompt, max_output_tokens: int | None, exclude: Collection[str]
    ) -> Lease:
        now = self.clock()
        fleet = self._models.get(model)
        if fleet is None:
            fleet = ModelFleet(self._config, self.index, self._meters.forget, self._ledger)
            self._models[model] = fleet
        candidates = self._fleet.candidates(model)
        members = fleet.members
        if candidates is not fleet.seen or fleet.away:
            members = fleet.update(candidates, now)
        if self._host is not None:
            for member in members:
                member.account.read()
        length = prompt.length
        eligible = self._eligible(fleet, members, length + (max_output_tokens or 0), exclude, now)
        if max_output_tokens is not None and max_output_tokens < fleet.output_tokens:
            output = max_output_tokens
        else:
            output = round(fleet.output_tokens)
        blocks = prompt.blocks if self._policy.by_prefix else ()
        wish = (length, output, blocks)
        choice = self._policy.choose(eligible, wish, now)
        self._picks += 1
        choice[0].last_pick = self._picks
        lease = Lease(self, fleet, choice, wish, now)
        fleet.uncached_tokens += _SMOOTHING * (lease.pending - fleet.uncached_tokens)
        self._decided(self.clock() - now)
        return lease

    def place(self, replica_id: str) -> tuple[PrefixIndex, Target] | None:
        """Where it is in the index, for who knows what it holds; None while nothing was picked
        since it came."""
        for fleet in self._models.values():
            if (member := fleet.find(replica_id)) is not None:
                return self.index, member.entry
        return None

    def publish(self) -> None:
        """Bring the gauges up to date: the accounts of the replicas, the size of the index. To be
        called once a second, as nobody reads them at every request's pace."""
        members = [member for fleet in self._models.values() for member in fleet.known()]
        self._meters.publish(members, self.index)
        # Millions of blocks at once would hold the event loop.
        self._fading = [index for index in self._fading if not index.sweep(_FADE_BLOCKS)]

    def use(self, config: RoutingConfig, *, cold: bool) -> None:
        """Decide by `config` from now on. What replicas have to do, and how fast they are, is
        known as before; with `cold` nothing of what they hold: blocks are made in another way."""
        self._config = config
        self._knee = float(config.attention_knee_tokens)
        if cold and self._host is None:
            before, self.index = self.index, PrefixIndex(config.index_entries)
            self.index.evictions = before.evictions
            before.clear_all()
            self._fading.append(before)
        else:
            self.index.limit(config.index_entries)
        self._policy = make_policy(config, self.index)
        for fleet in self._models.values():
            fleet.use(config, self.index)

    def forget(self, replica_id: str) -> None:
        """A replica left the configuration: nothing is remembered of it."""
        for model, fleet in list(self._models.items()):
            fleet.forget(replica_id)
            if not fleet.known():
                del self._models[model]
        self._meters.left(replica_id)

    def _eligible(
        self,
        fleet: ModelFleet,
        members: Sequence[Member],
        needed: int,
        exclude: Collection[str],
        now: float,
    ) -> Sequence[Member]:
        """Those that can take `needed` tokens now. Raises Unavailable."""
        eligible: list[Member] = []
        unproven: list[Member] = []
        full = small = 0
        for member in members:
            if now >= member.review_at:
                load = self._fleet.load(member.replica.id)
                block_tokens = self._config.block_tokens
                member.review(load, self.index, block_tokens, fleet.uncached_tokens, now)
            if exclude and member.replica.id in exclude:
                continue
            in_flight = member.account.in_flight
            limit = member.replica.max_in_flight
            if limit is not None and in_flight >= limit:
                full += 1
            elif member.kv_known and needed > member.kv_tokens:
                small += 1
            elif not member.proven and in_flight >= _UNPROVEN_IN_FLIGHT:
                unproven.append(member)
            else:
                eligible.append(member)
        if eligible:
            return eligible
        if unproven:  # better a cold replica than none
            return unproven
        raise self._refusal(members, full, small)

    def _refusal(self, members: Sequence[Member], full: int, small: int) -> Unavailable:
        if not members:
            reason, retry_s = "no_replica", _NO_REPLICA_RETRY_S
            text = "No replica of this model is available."
        elif full:
            waits = [queue_seconds(member) for member in members]
            reason, retry_s = "replicas_full", max(_FULL_RETRY_S, min(waits))
            text = "Every replica of this model has as many requests as it may."
        elif small:
            reason, retry_s = "kv_too_small", _NO_REPLICA_RETRY_S
            text = "No replica has a cache large enough for this prompt and its output."
        else:
            reason, retry_s = "replicas_tried", _FULL_RETRY_S
            text = "Every replica of this model was tried."
        self._meters.refused(reason)
        return Unavailable(text, code=reason, retry_after_s=retry_s)

    # --- called by leases, each at most once for one of them

    def prefilled(self, lease: Lease, uncached: int, now: float) -> None:
        """The first token of `lease` came, after `uncached` tokens of its own."""
        member = lease.member
        member.proven = True
        work = lease.ahead + work_tokens(uncached, lease.predicted_cached, self._knee)
        member.speed.first_token(work, now - lease.picked_at, now)

    def settled(
        self,
        lease: Lease,
        cached_tokens: int | None,
        output_tokens: int,
        seconds: float,
        now: float,
    ) -> None:
        """The engine said what `lease` used; `seconds` lie between its first and last token."""
        lease.fleet.observed(output_tokens)
        if output_tokens > 16 and seconds > 0:
            lease.member.speed.finished(
                seconds / (output_tokens - 1), lease.beside, lease.beside_tokens, now
            )
        if cached_tokens is None:
            return
        predicted = lease.predicted_cached
        if predicted:
            self._meters.predicted(predicted)
        if cached_tokens:
            self._meters.delivered(cached_tokens)
        # Engines count in blocks of their own, so a difference of two of ours says nothing.
        block = self._config.block_tokens
        off = not -2 * block <= predicted - cached_tokens <= 2 * block
        if off and lease.predicted_by is self.index and not lease.member.entry.exact:
            self.index.corrected(
                lease.member.entry, predicted=predicted // block, delivered=cached_tokens // block
            )
