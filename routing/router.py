"""Picks a replica for a request and charges it in the same step.

Performs only in that it reads a clock; there is no await between pick and charge, so concurrent
requests never decide on the same stale picture.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeVar, TypeVarTuple

from core.claim import NOBODY, Claim
from core.clock import Clock
from core.errors import Unavailable
from core.metrics import Metrics
from core.prompt import Prompt
from core.replica import Load, Replica
from routing.admission import AdmissionQueue, Waiter
from routing.config import RoutingConfig
from routing.eligibility import eligible, offers, saturated, with_room
from routing.explain import Explanation, explain
from routing.fleet import ModelFleet
from routing.host import Host
from routing.index import PrefixIndex, Target
from routing.lease import Lease
from routing.ledger import Ledger
from routing.meters import RouterMeters, WaitingMeters
from routing.policy import Choice, make_index, make_policy
from routing.score import Wish, has_enough, queue_seconds, work_tokens
from routing.sessions import Sessions
from routing.waiting_room import WaitingRoom

_SMOOTHING = 0.05
_FADE_BLOCKS = 20_000
_MOST_SESSIONS = 50_000

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


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
        *,
        rooms: Callable[..., WaitingRoom] = WaitingRoom,
    ) -> None:
        self._config = config
        self._fleet = fleet
        self.clock = clock
        self._host = host
        self._ledger = Ledger() if host is None else host.ledger
        self.index = make_index(config) if host is None else host.index
        self._policy = make_policy(config, self.index)
        self._fading: list[PrefixIndex] = []
        self._models: dict[str, ModelFleet] = {}
        self._knee = float(config.attention_knee_tokens)
        self._hold_s = config.admission.hold_s
        self._patient = config.admission.max_waiting > 0
        self._sessions = Sessions(_MOST_SESSIONS)
        self._picks = 0
        self._meters = RouterMeters(metrics)
        self._room = rooms(
            config.admission,
            lambda model, queue: self._alone(self._send_waiting, model, queue),
            self._rate,
            clock,
            WaitingMeters(metrics),
        )
        self.queues = self._room.queues
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
        claim: Claim = NOBODY,
        enter: Callable[[str, float], None] | None = None,
    ) -> Lease:
        """The best replica for `prompt`, charged; while all have enough to do, when it is its turn.
        `enter` is told that the phase `queue` begins, and when it ends. Raises Unavailable or
        RateLimited, with the reason as `code`."""
        if self._host is None:
            lease = self._pick(model, prompt, max_output_tokens, exclude, claim)
        else:
            lease = self._alone(self._pick, model, prompt, max_output_tokens, exclude, claim)
        if lease is not None:
            return lease
        if enter is not None:
            enter("queue", self.clock())
        fleet = self._models[model]
        wish = self._wish(fleet, prompt, max_output_tokens)
        needed = wish[0] + (max_output_tokens or 0)
        cached = self._policy.cached(fleet.members, wish)
        waiter = Waiter(wish, needed=needed, cached=cached, claim=claim, exclude=tuple(exclude))
        ahead_s = min(map(queue_seconds, fleet.members)) - self._hold_s
        lease = await self._room.wait(model, waiter, max(ahead_s, 0.0))
        if enter is not None:
            enter("route", self.clock())
        return lease

    def pick(
        self,
        *,
        model: str,
        prompt: Prompt,
        max_output_tokens: int | None,
        exclude: Collection[str] = (),
    ) -> Lease:
        """As `lease`, without ever waiting."""
        lease = self._alone(self._pick, model, prompt, max_output_tokens, exclude, None)
        assert lease is not None
        return lease

    def _alone(self, decide: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Call `decide` while no other worker decides."""
        if self._host is None:
            return decide(*arguments)
        lock = self._host.lock
        taken = lock.take()
        if not taken:
            self._meters.unlocked()
        try:
            return decide(*arguments)
        finally:
            if taken:
                lock.give()

    def _pick(
        self,
        model: str,
        prompt: Prompt,
        max_output_tokens: int | None,
        exclude: Collection[str],
        claim: Claim | None,
    ) -> Lease | None:
        """None: it must wait, which it never must without a `claim`."""
        if claim is None:
            claim, patient = NOBODY, False
        else:
            patient = self._patient
        now = self.clock()
        fleet = self._current(model, now)
        wish = self._wish(fleet, prompt, max_output_tokens)
        needed = wish[0] + (max_output_tokens or 0)
        try:
            fit = eligible(fleet.members, needed, exclude, patient)
        except Unavailable as refused:
            self._meters.refused(refused.reason)
            raise
        if not fit or (self.queues and patient and model in self.queues):
            return None
        last = self._sessions.last(claim) if claim.session else None
        choice = self._policy.choose(fit, wish, now, last)
        # As long as any has room the best one remains the best, whatever it has to do.
        if patient and has_enough(choice[0], self._hold_s) and saturated(fit, self._hold_s):
            return None
        lease = self._charge(fleet, choice, wish, claim, now)
        self._decided(self.clock() - now)
        return lease

    def _current(self, model: str, now: float) -> ModelFleet:
        """The fleet of `model` with the members and accounts of this moment."""
        fleet = self._models.get(model)
        if fleet is None:
            fleet = ModelFleet(self._config, self.index, self._meters.forget, self._ledger)
            self._models[model] = fleet
        candidates = self._fleet.candidates(model)
        if candidates is not fleet.seen or fleet.away:
            fleet.update(candidates, now)
        for member in fleet.members:
            if now >= member.review_at:
                load = self._fleet.load(member.replica.id)
                block_tokens = self._config.block_tokens
                member.review(load, self.index, block_tokens, fleet.uncached_tokens, now)
            if self._host is not None:
                member.account.read()
        return fleet

    def _wish(self, fleet: ModelFleet, prompt: Prompt, max_output_tokens: int | None) -> Wish:
        if max_output_tokens is not None and max_output_tokens < fleet.output_tokens:
            output = max_output_tokens
        else:
            output = round(fleet.output_tokens)
        return prompt.length, output, prompt.blocks if self._policy.by_prefix else ()

    def _charge(
        self, fleet: ModelFleet, choice: Choice, wish: Wish, claim: Claim, now: float
    ) -> Lease:
        self._picks += 1
        choice[0].last_pick = self._picks
        if claim.session:
            self._sessions.note(claim, choice[0].replica.id)
        lease = Lease(self, fleet, choice, wish, now)
        fleet.uncached_tokens += _SMOOTHING * (lease.pending - fleet.uncached_tokens)
        return lease

    # --- while all have enough to do

    def _rate(self, model: str) -> float:
        """Tokens that all replicas of `model` prefill in a second."""
        fleet = self._models.get(model)
        members = fleet.members if fleet is not None else ()
        return sum([member.speed.prefill_rate for member in members]) or 1.0

    def _send_waiting(self, model: str, queue: AdmissionQueue) -> None:
        """Bind requests of `queue` to replicas of `model` as long as there is room."""
        now = self.clock()
        fleet = self._current(model, now)
        while queue and (room := with_room(fleet.members, self._hold_s)):
            offer = offers(self._policy, fleet.members, room, now, waiting=len(queue))
            found = queue.next(offer, now)
            if found is None:
                return
            waiter, choice = found
            queue.serve(waiter, now)
            if not waiter.ticket.done():  # the client is still there
                lease = self._charge(fleet, choice, waiter.wish, waiter.claim, now)
                waiter.ticket.set_result(lease)

    def freed(self) -> None:
        """A lease gave something back, and somebody waits."""
        self._room.wake()

    def explain(
        self, model: str, prompt: Prompt, max_output_tokens: int | None, claim: Claim = NOBODY
    ) -> Explanation:
        """Where it would go now and why; charges nothing."""
        now = self.clock()
        fleet = self._current(model, now)
        wish = self._wish(fleet, prompt, max_output_tokens)
        return explain(
            self._policy,
            fleet.members,
            wish,
            needed=wish[0] + (max_output_tokens or 0),
            hold_s=self._hold_s if self._patient else None,
            waiting=len(self.queues.get(model, ())),
            last=self._sessions.last(claim),
            exclude=(),
            now=now,
        )

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
        self._room.publish()
        # Millions of blocks at once would hold the event loop.
        self._fading = [index for index in self._fading if not index.sweep(_FADE_BLOCKS)]

    def use(self, config: RoutingConfig, *, cold: bool) -> None:
        """Decide by `config` from now on. What replicas have to do, and how fast they are, is
        known as before; with `cold` nothing of what they hold: blocks are made in another way."""
        self._config = config
        self._knee = float(config.attention_knee_tokens)
        self._hold_s = config.admission.hold_s
        self._patient = config.admission.max_waiting > 0
        self._room.use(config.admission)
        if cold and self._host is None:
            before, self.index = self.index, make_index(config)
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
            if not fleet.known() and model not in self.queues:
                del self._models[model]
        self._meters.left(replica_id)

    # --- called by leases, each at most once for one of them

    def prefilled(self, lease: Lease, uncached: int, now: float) -> None:
        """The first token of `lease` came, after `uncached` tokens of its own."""
        member = lease.member
        member.proven = True
        work = lease.ahead + work_tokens(uncached, lease.predicted_cached, self._knee)
        member.speed.first_token(work, now - lease.picked_at, now)
        if self.queues:
            self._room.wake()

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
