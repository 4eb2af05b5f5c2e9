"""A replica held for one exchange. Pure: instants are arguments or asked of the keeper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

from routing.fleet import ModelFleet
from routing.policy import Choice
from routing.score import Score


class Keeper(Protocol):
    """Whoever gave the lease and learns from it."""

    @property
    def clock(self) -> Callable[[], float]: ...

    def prefilled(self, lease: Lease, now: float) -> None: ...

    def settled(
        self,
        lease: Lease,
        cached_tokens: int | None,
        output_tokens: int,
        seconds: float,
        now: float,
    ) -> None: ...

    def freed(self, lease: Lease, *, prefilled: bool) -> None: ...


class Lease:
    """`replica` is charged until `release`, which leaving a `with` block calls.

    `predicted_cached`: prompt tokens it is believed to hold. Every call is idempotent.

    For the keeper: `pending` and `live` are charged to the member's account, `blocks` expected by
    `entry` of the index; both are given back once. `work_tokens` were ahead of the first token
    when the replica was picked, `beside` and `beside_tokens` were there when it came. One object
    for all of it, because every request makes one.
    """

    __slots__ = (
        "_first_at",
        "_keeper",
        "_open",
        "_terms",
        "beside",
        "beside_tokens",
        "blocks",
        "entry",
        "fleet",
        "live",
        "member",
        "pending",
        "picked_at",
        "predicted_cached",
        "replica",
        "work_tokens",
    )

    def __init__(
        self,
        keeper: Keeper,
        fleet: ModelFleet,
        choice: Choice,
        *,
        pending: int,
        live: int,
        blocks: Sequence[int],
        work_tokens: float,
        picked_at: float,
    ) -> None:
        self._keeper = keeper
        self.fleet = fleet
        self.member, self.predicted_cached, self._terms = choice
        member = self.member
        self.replica = member.replica
        self.entry = member.entry
        self.pending = pending
        self.live = live
        self.blocks = blocks
        self.work_tokens = work_tokens
        self.picked_at = picked_at
        self._first_at: float | None = None
        self._open = True
        self.beside = 0
        self.beside_tokens = 0

    def __repr__(self) -> str:
        return f"<Lease {self.replica.id} W={self.pending} K={self.live} open={self._open}>"

    @property
    def score(self) -> Score | None:
        """Why it was chosen; None by policies without scores."""
        return None if self._terms is None else Score._make(self._terms)

    def first_token(self, now: float) -> None:
        """The first token came at `now`: the prompt is prefilled and its blocks are resident."""
        if self._first_at is not None or not self._open:
            return
        self._first_at = now
        account = self.member.account
        self.beside = account.in_flight
        self.beside_tokens = account.live_tokens
        self._keeper.prefilled(self, now)

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
        keeper.settled(self, cached_tokens, output_tokens, now - first_at, now)
        self.release()

    def release(self) -> None:
        """Give everything back; what has produced no token leaves no trace in the index."""
        if self._open:
            self._open = False
            self._keeper.freed(self, prefilled=self._first_at is not None)

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
