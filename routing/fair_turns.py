"""In which order tenants that share a line take turns: start-time fair queueing. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, TypeVar


class Turn(Protocol):
    """One request of a tenant; `tokens` is what its turn costs."""

    @property
    def tenant(self) -> str: ...

    @property
    def tokens(self) -> int: ...


T = TypeVar("T", bound=Turn)
T_co = TypeVar("T_co", bound=Turn, covariant=True)


class Line(Protocol[T_co]):
    """Those of one tenant, by number, in order."""

    @property
    def waiters(self) -> Mapping[int, T_co]: ...


def in_turns(
    arrivals: Mapping[int, T],
    lines: Mapping[str, Line[T]],
    used: Mapping[str, float],
    virtual: float,
    weight_of: Callable[[str], float],
) -> Iterator[T]:
    """All of `arrivals`, which are by number in the order in which they came; `lines` are the same
    by tenant. `used`: when a tenant's next turn begins, in tokens of weight 1, at `virtual` where
    that is later or none is given. Whoever begins first is first, then the lower number.

    Lazy, as the first few are wanted: whoever has used no more than it may is equal, and that is
    nearly all of perhaps thousands, so they are taken as they came before anything is sorted.
    """
    if len(lines) == 1:
        yield from arrivals.values()
        return
    ahead = {name for name, until in used.items() if until > virtual and name in lines}
    begun: set[str] = set()
    for waiter in arrivals.values():
        if len(begun) + len(ahead) == len(lines):
            break
        if waiter.tenant not in begun and waiter.tenant not in ahead:
            begun.add(waiter.tenant)
            yield waiter
    turns: list[tuple[float, int, Mapping[int, T], Iterator[int]]] = []
    for name, line in lines.items():
        waiters = line.waiters
        numbers = iter(waiters)
        start = used[name] if name in ahead else virtual
        if name in begun:
            start += waiters[next(numbers)].tokens / weight_of(name)
        if (number := next(numbers, None)) is not None:
            turns.append((start, number, waiters, numbers))
    heapq.heapify(turns)
    while turns:
        start, number, waiters, numbers = turns[0]
        waiter = waiters[number]
        yield waiter
        follower = next(numbers, None)
        if follower is None:
            heapq.heappop(turns)
        else:
            start += waiter.tokens / weight_of(waiter.tenant)
            heapq.heapreplace(turns, (start, follower, waiters, numbers))
