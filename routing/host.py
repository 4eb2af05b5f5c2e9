"""What a worker's router has in common with those of the other workers on its host. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from routing.index import PrefixIndex
from routing.ledger import Ledger


class Lock(Protocol):
    """Held from the look at the accounts to the charge, so that no two workers decide on the same
    picture. Whoever cannot have it soon decides without."""

    def take(self) -> bool: ...

    def give(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Host:
    """`ledger` and `index` are this worker's views of what all of them charge and know."""

    ledger: Ledger
    index: PrefixIndex
    lock: Lock
