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
    """What one request draws from the buckets of its plan.

    A bucket that holds `least` grants it, and is charged `asked` or all that it holds, whichever
    is less. `used`: as last told by `progress`. `id` is the store's name for it; `taken` and
    `holder` are for stores that remember charges here: what was charged (None: nothing, and
    nothing is to be given back), and in whose name.
    """

    __slots__ = ("asked", "holder", "id", "least", "plan", "taken", "used")

    def __init__(self, plan: Plan, least: Amounts, asked: Amounts) -> None:
        self.plan = plan
        self.least = least
        self.asked = asked
        self.used = plan.nothing
        self.id = b""
        self.taken: list[int | None] = []
        self.holder = 0

    def __repr__(self) -> str:
        return f"<Charge {self.id.decode()} {self.least}..{self.asked}>"


class Decision(NamedTuple):
    """`levels` (units) of the buckets: after the charge when granted, else as they are.
    `shadowed`: a bit for each bucket of a shadow rule that would have refused, and was not charged.
    """

    granted: bool
    levels: Sequence[int]
    shadowed: int = 0


class Store(Protocol):
    """Buckets that many requests share.

    `reserve` charges all buckets of the plan or none; it raises StoreUnavailable. A charge that was
    granted is told of by `progress` as it is used, and now and then in any case, since it is a
    lease; it is ended by one `settle` with what was used of each bucket. Both return at once. A
    settle is not lost while the store is away for a short time.

    `levels` looks at the buckets of a plan, `reset` fills them. `tick` is called a few times a
    second. `ready` is None or the reason why the store is not in use.
    """

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def ready(self) -> str | None: ...

    async def reserve(self, charge: Charge) -> Decision: ...

    def progress(self, charge: Charge, used: Amounts) -> None: ...

    def settle(self, charge: Charge, used: Amounts) -> None: ...

    async def levels(self, plan: Plan) -> Sequence[int]: ...

    async def reset(self, plan: Plan) -> None: ...

    def tick(self) -> None: ...
