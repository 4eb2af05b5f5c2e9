"""A replica held for one exchange. Pure: instants are arguments or asked of the keeper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Protocol, Self

from routing.fleet import ModelFleet
from routing.index import PrefixIndex
from routing.policy import Choice
from routing.score import Score, Wish


class Keeper(Protocol):
    """Whoever gave the lease and learns from it."""

    @property
    def clock(self) -> Callable[[], float]: ...

    @property
    def index(self) -> PrefixIndex: ...

    @property
    def underflow(self) -> Callable[[], None]: ...

    @property
    def queues(self) -> Mapping[str, object]:
        """Not empty while requests wait for what leases give back."""

    def freed(self) -> None: ...

    def prefilled(self, lease: Lease, uncached: int, now: float) -> None: ...

    def settled(
        self,
        lease: Lease,
        cached_tokens: int | None,
        output_tokens: int,
        seconds: float,
        now: float,
    ) -> None: ...


class Lease:
    """`replica` is charged from the start until `release`, which leaving a `with` block calls.

    `predicted_cached`: prompt tokens it is believed to hold. Every call is idempotent.

    For the keeper: `pending` are the uncached tokens until the first one comes, `ahead` what had
    to be prefilled before them; `beside` and `beside_tokens` are the replica's account when it
    came. One object for the charge and the expected blocks, because every request makes one.
    """

    __slots__ = (
        "_blocks",
        "_entry",
        "_first_at",
        "_index",
        "_keeper",
        "_live",
        "_moved",
        "_open",
        "_terms",
        "ahead",
        "beside",
        "beside_tokens",
        "fleet",
        "member",
        "pending",
        "picked_at",
        "predicted_cached",
        "replica",
    )

    def __init__(
        self, keeper: Keeper, fleet: ModelFleet, choice: Choice, wish: Wish, picked_at: float
    ) -> None:
        member, cached, self._terms = choice
        length, output, blocks = wish
        self._keeper = keeper
        self.fleet = fleet
        self.member = member
        self.replica = member.replica
        self.predicted_cached = cached
        self.picked_at = picked_at
        self._first_at: float | None = None
        self._open = True
        self._moved = False
        self.beside = 0
        self.beside_tokens = 0
        account = member.account
        self.ahead = account.pending_tokens
        self.pending = length - cached if cached < length else 1
        self._live = length + output
        account.charge(self.pending, self._live)
        # Its own: the keeper's may be another one by the time of the first token.
        index = self._index = keeper.index
        self._entry = member.entry
        self._blocks = blocks
        index.expect(member.entry, blocks)

    def __repr__(self) -> str:
        return f"<Lease {self.replica.id} W={self.pending} K={self._live} open={self._open}>"

    @property
    def outlived(self) -> bool:
        """The replica has left the configuration since: what becomes of it concerns nobody."""
        return self.member.gone

    @property
    def predicted_first_token_s(self) -> float:
        """From the pick to the first token, as far as could be told then."""
        if self._terms is None:
            return (self.ahead + self.pending) / self.member.speed.prefill_rate
        return self._terms[1] + self._terms[2]

    @property
    def disturbance_s(self) -> float:
        """What its prefill costs all the others on the replica together."""
        own_s = self._terms[2] if self._terms is not None else self.predicted_first_token_s
        return (self.member.account.in_flight - 1) * own_s

    @property
    def predicted_by(self) -> PrefixIndex:
        """The index that `predicted_cached` is from."""
        return self._index

    @property
    def score(self) -> Score | None:
        """Why it was chosen; None by policies without scores."""
        return None if self._terms is None else Score._make(self._terms)

    def moved(self) -> None:
        """Its prompt is prefilled elsewhere and fetched: it keeps nobody waiting here, and tells
        nothing of how fast this replica is or of what it held."""
        if self._open and self._first_at is None:
            pending, self.pending = self.pending, 0
            self._moved = True
            if not self.member.account.prefilled(pending):
                self._keeper.underflow()
            if self._keeper.queues:
                self._keeper.freed()

    def first_token(self, now: float) -> None:
        """The first token came at `now`: the prompt is prefilled and its blocks are resident."""
        if self._first_at is not None or not self._open:
            return
        self._first_at = now
        account = self.member.account
        self.beside = account.in_flight
        self.beside_tokens = account.live_tokens
        pending, self.pending = self.pending, 0
        keeper = self._keeper
        if not account.prefilled(pending):
            keeper.underflow()
        self._index.confirm(self._entry, self._blocks)
        if not self._moved:
            keeper.prefilled(self, pending, now)

    def settle(self, *, prompt_tokens: int, cached_tokens: int | None, output_tokens: int) -> None:
        """The answer ended and the engine told what it used (`cached_tokens` None: not told)."""
        if not self._open:
            return
        keeper = self._keeper
        now = keeper.clock()
        first_at = self._first_at
        if first_at is None:
            first_at = now
            self.first_token(now)
        if self._moved:
            cached_tokens = None
        keeper.settled(self, cached_tokens, output_tokens, now - first_at, now)
        self.release()

    def release(self) -> None:
        """Give everything back; what has produced no token leaves no trace in the index."""
        if not self._open:
            return
        self._open = False
        if not self.member.account.free(self.pending, self._live):
            self._keeper.underflow()
        if self._first_at is None:
            self._index.drop(self._entry, self._blocks)
        if self._keeper.queues:
            self._keeper.freed()

    def explain(self) -> str:
        """The decision in one line, in milliseconds."""
        score = self.score
        if score is None:
            return f"{self.replica.id}: next in turn"
        terms = " ".join(f"{name}={value * 1e3:.2f}" for name, value in score._asdict().items())
        return f"{self.replica.id}: cached={self.predicted_cached} {terms}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._open:
            self.release()
