"""What each replica has been given and not yet finished: the load truth. Pure.

Integers only, so that after any number of lives an account stands at exactly nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.shared_ledger import SharedLedger, Words


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

    @property
    def own(self) -> Account:
        """What this process alone has given it."""
        return self

    def read(self) -> None:
        """Take in what other processes have given it meanwhile."""

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


class SharedAccount(Account):
    """One replica, charged by several workers. The sums are those at the last `read`, and what
    this worker did since."""

    __slots__ = ("_last", "_own", "_words", "_worker", "_workers", "place")

    def __init__(self, words: Words, worker: int, workers: int, place: int) -> None:
        super().__init__()
        self.place = place
        self._own = Account()
        self._words: Words | None = words
        self._worker = worker
        self._workers = workers
        self._last: list[int] = []
        self._write()
        self.read()

    @property
    def own(self) -> Account:
        return self._own

    def read(self) -> None:
        if self._words is not None:
            words = self._words.tolist()
            if words != self._last:  # which is less to do than to add them up
                self._last, count = words, self._workers
                self.pending_tokens = sum(words[:count])
                self.in_flight = sum(words[count : 2 * count])
                self.live_tokens = sum(words[2 * count :])

    def charge(self, pending: int, live: int) -> None:
        self._own.charge(pending, live)
        super().charge(pending, live)
        self._write()

    def prefilled(self, pending: int) -> bool:
        whole = self._own.prefilled(pending)
        super().prefilled(pending)
        self._write()
        return whole

    def free(self, pending: int, live: int) -> bool:
        whole = self._own.free(pending, live)
        super().free(pending, live)
        self._write()
        return whole

    def leave(self) -> None:
        """Its place is another replica's now: what is still in flight counts for nobody else."""
        if self._words is not None:
            own, self._own = self._own, Account()
            self._write()
            self._words, self._own = None, own
            self.pending_tokens = own.pending_tokens
            self.in_flight = own.in_flight
            self.live_tokens = own.live_tokens

    def _write(self) -> None:
        words, own = self._words, self._own
        if words is not None:
            at, count = self._worker, self._workers
            words[at] = own.pending_tokens
            words[at + count] = own.in_flight
            words[at + 2 * count] = own.live_tokens


class Ledger:
    """Where accounts come from: here, ones that this process has for itself."""

    shared = False

    def __repr__(self) -> str:
        return "<Ledger>"

    def account(self, replica_id: str) -> Account:
        """A new account, at nothing."""
        return Account()


class WorkerLedger(Ledger):
    """The accounts of one worker among several. `places` tells where each replica's words are; of
    a replica that has no place nobody else hears."""

    shared = True

    def __init__(self, memory: SharedLedger, worker: int, places: Mapping[str, int]) -> None:
        self._memory = memory
        self._worker = worker
        self._places = places
        self._accounts: dict[int, SharedAccount] = {}

    def __repr__(self) -> str:
        return f"<WorkerLedger {self._worker}: {self._accounts}>"

    def use(self, places: Mapping[str, int]) -> None:
        """Other replicas, or others in the same places."""
        self._places = places

    def account(self, replica_id: str) -> Account:
        place = self._places.get(replica_id)
        if place is None:
            return Account()
        if (before := self._accounts.get(place)) is not None:
            before.leave()  # of a replica that is gone, or was; its leases may live on
        words = self._memory.place(place)
        account = SharedAccount(words, self._worker, self._memory.workers, place)
        self._accounts[place] = account
        return account
