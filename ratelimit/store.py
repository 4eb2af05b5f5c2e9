"""What the limiter asks of a store, whichever it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ratelimit.plan import Amounts, Plan


class StoreUnavailable(Exception):
    """The store gave no usable answer. `kind` is one word from a bounded set (for metrics)."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class Charge:
    """What one request draws from the buckets of its plan. `id` is the store's name for it."""

    __slots__ = ("amounts", "id", "plan")

    def __init__(self, plan: Plan, amounts: Amounts) -> None:
        self.plan = plan
        self.amounts = amounts
        self.id = b""

    def __repr__(self) -> str:
        return f"<Charge {self.id.decode()} {self.amounts}>"


class Decision(NamedTuple):
    """`levels` (units) of the buckets: after the charge when granted, else as they are."""

    granted: bool
    levels: Sequence[int]


class Store(Protocol):
    """Buckets that many requests share.

    `reserve` charges all buckets of the plan or none; it raises StoreUnavailable. A reservation
    whose `reserve` was granted is ended by one `settle`, with what was used of each bucket; it
    returns at once and is not lost while the store is away for a short time.
    """

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def ready(self) -> str | None: ...

    async def reserve(self, charge: Charge) -> Decision: ...

    def settle(self, charge: Charge, used: Amounts) -> None: ...
