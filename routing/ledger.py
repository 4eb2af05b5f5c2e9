"""What each replica has been given and not yet finished: the load truth. Pure.

Integers only, so that after any number of lives an account stands at exactly nothing.
"""

from __future__ import annotations


class Account:
    """One replica: `pending_tokens` W, uncached prompt tokens whose first token has not come;
    `in_flight` n; `live_tokens` K, prompt and expected output of what is in flight.

    Each request is charged once and freed once, which its lease sees to. What is taken back
    returns False if more was taken than was there (it never should); then it stands at nothing.
    """

    __slots__ = ("in_flight", "live_tokens", "pending_tokens")

    def __init__(self) -> None:
        self.pending_tokens = 0
        self.in_flight = 0
        self.live_tokens = 0

    def __repr__(self) -> str:
        return f"<Account W={self.pending_tokens} n={self.in_flight} K={self.live_tokens}>"

    def charge(self, pending: int, live: int) -> None:
        """One request more."""
        self.pending_tokens += pending
        self.in_flight += 1
        self.live_tokens += live

    def prefilled(self, pending: int) -> bool:
        """A first token came: its prompt is no longer ahead of others."""
        self.pending_tokens -= pending
        return self.pending_tokens >= 0 or self._clamp()

    def free(self, pending: int, live: int) -> bool:
        """One request less; `pending` is what of it was not prefilled."""
        self.pending_tokens -= pending
        self.in_flight -= 1
        self.live_tokens -= live
        if self.pending_tokens >= 0 and self.in_flight >= 0 and self.live_tokens >= 0:
            return True
        return self._clamp()

    def _clamp(self) -> bool:
        self.pending_tokens = max(self.pending_tokens, 0)
        self.in_flight = max(self.in_flight, 0)
        self.live_tokens = max(self.live_tokens, 0)
        return False
