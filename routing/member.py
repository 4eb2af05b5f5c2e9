"""What the router knows of one replica. Pure."""

from __future__ import annotations

import xxhash

from core.replica import Load, Replica
from routing.audit import Audit
from routing.config import RoutingConfig
from routing.index import PrefixIndex, Target
from routing.learning import ModelSpeed
from routing.ledger import Account

NEVER = float("-inf")
_REVIEW_S = 1.0


class Member:
    """One replica: its account, its speed, its part of the index.

    `appeared_at`: when it came (back), NEVER for those there from the start. `proven`: it has
    answered since. `last_pick` counts picks of the whole router, to tell who waited longest.
    `kv_known`: the size of its KV cache was configured or reported, not assumed. `gone`: nothing
    is remembered of it any more, though leases may still hold it.
    """

    __slots__ = (
        "account",
        "appeared_at",
        "audit",
        "entry",
        "foreign_in_flight",
        "foreign_tokens",
        "gone",
        "key",
        "kv_known",
        "kv_tokens",
        "last_pick",
        "proven",
        "replica",
        "review_at",
        "speed",
    )

    def __init__(
        self,
        replica: Replica,
        config: RoutingConfig,
        *,
        index: PrefixIndex,
        speeds: ModelSpeed,
        appeared_at: float,
        account: Account | None = None,
    ) -> None:
        self.replica = replica
        self.key = xxhash.xxh3_64_intdigest(replica.id.encode())
        self.account = Account() if account is None else account
        self.speed = speeds.replica(replica.weight)
        self.audit = Audit()
        self.kv_known = replica.kv_tokens is not None
        self.kv_tokens = replica.kv_tokens or config.default_kv_tokens
        self.entry: Target = index.add(self.kv_tokens // config.block_tokens, replica.id)
        self.appeared_at = appeared_at
        self.proven = appeared_at == NEVER
        self.last_pick = 0
        self.review_at = NEVER
        self.foreign_tokens = 0.0
        self.foreign_in_flight = 0.0
        self.gone = False

    def __repr__(self) -> str:
        return f"<Member {self.replica.id} {self.account} {self.speed}>"

    def use(self, replica: Replica, config: RoutingConfig, index: PrefixIndex) -> None:
        """The same server with other settings, or another index, which knows nothing of it."""
        if replica.kv_tokens is not None:
            self.kv_known = True
            self.kv_tokens = replica.kv_tokens
        elif self.replica.kv_tokens is not None or not self.kv_known:
            self.kv_known = False  # until it reports
            self.kv_tokens = config.default_kv_tokens
        self.replica = replica
        capacity = self.kv_tokens // config.block_tokens
        if not index.has(self.entry):
            self.entry = index.add(capacity, replica.id)
        elif self.entry.nominal != max(capacity, 1):
            index.resize(self.entry, capacity)

    def review(
        self,
        load: Load | None,
        index: PrefixIndex,
        block_tokens: int,
        mean_uncached: float,
        now: float,
    ) -> None:
        """Take in what the replica last reported; called when `review_at` has come."""
        self.review_at = now + _REVIEW_S
        self.audit.take(load, self.account.in_flight, now)
        self.foreign_in_flight = self.audit.in_flight
        self.foreign_tokens = self.audit.waiting * mean_uncached
        if self.replica.kv_tokens is None and load is not None and load.kv_tokens:
            self.kv_known = True
            if load.kv_tokens != self.kv_tokens:
                self.kv_tokens = load.kv_tokens
                index.resize(self.entry, load.kv_tokens // block_tokens)
