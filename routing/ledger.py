"""What each replica has been given and not yet finished: the load truth. Pure.

Integers only, so that after any number of lives an account stands at exactly nothing.
"""

from __future__ import annotations

from collections.abc import Callable


class Account:
    """One replica: `pending_tokens` W, uncached prompt tokens whose first token has not come;
    `in_flight` n; `live_tokens` K, prompt and expected output of what is in flight."""

    __slots__ = ("in_flight", "live_tokens", "pending_tokens")

    def __init__(self) -> None:
        self.pending_tokens = 0
        self.in_flight = 0
        self.live_tokens = 0

    def __repr__(self) -> str:
        return f"<Account W={self.pending_tokens} n={self.in_flight} K={self.live_tokens}>"


class Charge:
    """One request's share of an account: made at the pick, freed exactly once.

    `on_underflow` is called if an account held less than is taken back (it never should).
    """

    __slots__ = ("_account", "_live", "_on_underflow", "_pending", "open")

    def __init__(
        self, account: Account, *, pending: int, live: int, on_underflow: Callable[[], None]
    ) -> None:
        account.pending_tokens += pending
        account.in_flight += 1
        account.live_tokens += live
        self._account = account
        self._pending = pending
        self._live = live
        self.open = True
        self._on_underflow = on_underflow

    def __repr__(self) -> str:
        return f"<Charge W={self._pending} K={self._live} open={self.open}>"

    def prefilled(self) -> None:
        """The first token came: the prompt is no longer ahead of others. Idempotent."""
        pending, self._pending = self._pending, 0
        if pending:
            account = self._account
            account.pending_tokens = self._taken(account.pending_tokens, pending)

    def free(self) -> None:
        """Give everything back. Idempotent."""
        if not self.open:
            return
        self.open = False
        self.prefilled()
        account = self._account
        account.in_flight = self._taken(account.in_flight, 1)
        account.live_tokens = self._taken(account.live_tokens, self._live)

    def _taken(self, held: int, amount: int) -> int:
        if held >= amount:
            return held - amount
        self._on_underflow()
        return 0
