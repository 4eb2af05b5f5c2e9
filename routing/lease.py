"""A replica held for one exchange. Pure: instants are arguments or asked of the keeper."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from routing.fleet import ModelFleet
from routing.index import Expectation
from routing.ledger import Charge
from routing.policy import Choice


class Keeper(Protocol):
    """Whoever gave the lease and learns from it."""

    def now(self) -> float: ...

    def prefilled(self, lease: Lease, now: float) -> None: ...

    def settled(
        self,
        lease: Lease,
        cached_tokens: int | None,
        output_tokens: int,
        seconds: float,
        now: float,
    ) -> None: ...

    def freed(self, lease: Lease) -> None: ...


class Lease:
    """`replica` is charged until `release`, which leaving a `with` block calls.

    `predicted_cached`: prompt tokens it is believed to hold. `score`: why it was chosen (None by
    policies without one). Every call is idempotent.
    """

    __slots__ = (
        "_charge",
        "_expectation",
        "_first_at",
        "_keeper",
        "_settled",
        "beside",
        "beside_tokens",
        "fleet",
        "member",
        "picked_at",
        "predicted_cached",
        "replica",
        "score",
        "work_tokens",
    )

    def __init__(
        self,
        keeper: Keeper,
        fleet: ModelFleet,
        choice: Choice,
        charge: Charge,
        expectation: Expectation,
        *,
        work_tokens: float,
        picked_at: float,
    ) -> None:
        self._keeper = keeper
        self.fleet = fleet
        self.member, self.predicted_cached, self.score = choice
        self.replica = self.member.replica
        self._charge = charge
        self._expectation = expectation
        self.work_tokens = work_tokens
        self.picked_at = picked_at
        self._first_at: float | None = None
        self._settled = False
        self.beside = 0
        self.beside_tokens = 0

    def __repr__(self) -> str:
        return f"<Lease {self.replica.id} {self._charge}>"

    def first_token(self, now: float) -> None:
        """The first token came at `now`: the prompt is prefilled and its blocks are resident."""
        if self._first_at is not None or not self._charge.open:
            return
        self._first_at = now
        account = self.member.account
        self.beside = account.in_flight
        self.beside_tokens = account.live_tokens
        self._charge.prefilled()
        self._expectation.confirm()
        self._keeper.prefilled(self, now)

    def settle(self, *, prompt_tokens: int, cached_tokens: int | None, output_tokens: int) -> None:
        """The answer ended and the engine told what it used (`cached_tokens` None: not told)."""
        if self._settled or not self._charge.open:
            return
        self._settled = True
        now = self._keeper.now()
        self.first_token(now)
        assert self._first_at is not None
        self._keeper.settled(self, cached_tokens, output_tokens, now - self._first_at, now)
        self.release()

    def release(self) -> None:
        """Give everything back; what has produced no token leaves no trace in the index."""
        if not self._charge.open:
            return
        self._charge.free()
        self._expectation.drop()
        self._keeper.freed(self)

    def explain(self) -> str:
        """The decision in one line, in milliseconds."""
        if self.score is None:
            return f"{self.replica.id}: next in turn"
        terms = " ".join(
            f"{name}={value * 1e3:.2f}" for name, value in self.score._asdict().items()
        )
        return f"{self.replica.id}: cached={self.predicted_cached} {terms}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
