"""What a request holds of the limits until it has ended. Pure but for the store that it tells."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from ratelimit.answer import Headers
from ratelimit.store import Charge, Store


class Reservation:
    """The first of `settle` and `abandon` counts. As a context manager it abandons on exit what was
    not settled.

    `headers` are the fields for the answer, `reserved_tokens` the prompt and the estimated output
    (a bucket that held less was charged only that). `degraded`: the store was not asked.
    `shadow_refusals` are the names of the rules in shadow that would have refused.
    """

    __slots__ = (
        "_charge",
        "_ended",
        "_output",
        "_prompt_tokens",
        "_reported",
        "_reported_at",
        "_store",
        "degraded",
        "headers",
        "reserved_tokens",
        "shadow_refusals",
    )

    def __init__(
        self,
        prompt_tokens: int,
        output_tokens: int,
        headers: Headers = (),
        shadow_refusals: tuple[str, ...] = (),
        *,
        degraded: bool = False,
    ) -> None:
        self.reserved_tokens = prompt_tokens + output_tokens
        self.headers = headers
        self.degraded = degraded
        self.shadow_refusals = shadow_refusals
        self._prompt_tokens = prompt_tokens
        self._store: Store | None = None
        self._charge: Charge | None = None
        self._ended: Callable[[Reservation], object] = _nothing
        self._output: Callable[[], int] | None = None
        self._reported = 0
        self._reported_at = 0.0

    def __repr__(self) -> str:
        state = "ended or free" if self._charge is None else repr(self._charge)
        return f"<Reservation {self.reserved_tokens} tokens, {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._charge is not None:
            self.abandon()

    def hold(
        self, store: Store, charge: Charge, ended: Callable[[Reservation], object], now: float
    ) -> None:
        """It has charged something, since `now`; `ended` is called when that is over."""
        self._store, self._charge, self._ended, self._reported_at = store, charge, ended, now

    def follow(self, output: Callable[[], int]) -> None:
        """`output` tells how many tokens of output have been relayed so far; it is asked now and
        then, so that they are charged while the stream goes on."""
        self._output = output

    def report(self, now: float, renew_s: float) -> bool:
        """Tell the store what is used so far, or about every `renew_s` that it goes on. Whether
        more was used than at the last time."""
        charge, store = self._charge, self._store
        if charge is None or store is None:
            return False
        output = self._output() if self._output is not None else 0
        grew = output > self._reported
        if grew:
            self._reported = output
            used = charge.plan.amounts(self._prompt_tokens, 0, output)
        elif now - self._reported_at >= renew_s:
            used = charge.used
        else:
            return False
        self._reported_at = now
        store.progress(charge, used)
        charge.used = used
        return grew

    def settle(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> None:
        """The request ran and used so many tokens. `cached_tokens` are a part of the prompt.
        Returns at once."""
        charge = self._end()
        if charge is not None and self._store is not None:
            used = charge.plan.amounts(prompt_tokens, cached_tokens, output_tokens)
            self._store.settle(charge, used)

    def abandon(self) -> None:
        """The request did not run: all is given back. Returns at once."""
        charge = self._end()
        if charge is not None and self._store is not None:
            self._store.settle(charge, charge.plan.nothing)

    def _end(self) -> Charge | None:
        charge, self._charge = self._charge, None
        self._output = None
        if charge is not None:
            self._ended(self)
            self._ended = _nothing
        return charge


def _nothing(reservation: Reservation) -> None:
    """Nobody wants to know that it ended."""
