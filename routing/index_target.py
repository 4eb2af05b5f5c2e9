"""One replica's part of the prefix index, and where the masks of all are. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Reading(Protocol):
    """From a block's hash to the mask of those that hold it."""

    def get(self, block: int, default: int, /) -> int: ...


class Masks(Reading, Protocol):
    """The same for who writes them."""

    def __setitem__(self, block: int, mask: int, /) -> None: ...

    def pop(self, block: int, default: int, /) -> int: ...

    def __len__(self) -> int: ...


class Tiers(NamedTuple):
    """The bits of `slower` further tiers of each of `places` replicas."""

    places: int
    slower: int

    def bits(self, place: int) -> tuple[int, ...]:
        return tuple(1 << place + self.places * tier for tier in range(1, self.slower + 1))


ONE_TIER = Tiers(0, 0)


class Target:
    """One replica's part of the index. `resident` is in order of use, the oldest first; beyond
    `most` of them the oldest go. `expected` counts what is on its way.

    `exact`: it tells what it `held`, and nothing is judged resident. `leaving` are prompts whose
    first token came, the first `due` of them at the last `expire` or before. `fixed`: its bit was
    given by the caller. `name` and `place` are for an index that shares what it knows. `slower`:
    what the replica holds in these tiers and in all faster ones, where tiers differ in worth; they
    only ever `held`.
    """

    __slots__ = (
        "alive",
        "bit",
        "capacity",
        "due",
        "exact",
        "expected",
        "fixed",
        "held",
        "leaving",
        "most",
        "name",
        "nominal",
        "place",
        "resident",
        "slower",
    )

    def __init__(self, bit: int, capacity: int, *, fixed: bool = False) -> None:
        self.bit = bit
        self.fixed = fixed
        self.name = ""
        self.place = -1
        self.exact = False
        self.held: set[int] = set()
        self.leaving: deque[Sequence[int]] = deque()
        self.due = 0
        self.capacity = capacity
        self.nominal = capacity
        self.most = capacity
        self.alive = True
        self.slower: tuple[Target, ...] = ()
        self.resident: dict[int, None] = {}
        self.expected: dict[int, int] = {}

    def __repr__(self) -> str:
        known = f"{len(self.held)} held" if self.exact else f"{len(self.resident)} resident"
        return f"<Target {self.bit:#x}: {known}, room for {self.capacity} blocks>"
