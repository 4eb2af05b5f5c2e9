"""Whose turn it is, beside the plain way to tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from routing.fair_turns import in_turns


class Request(NamedTuple):
    number: int
    tenant: str
    tokens: int


class Line:
    def __init__(self) -> None:
        self.waiters: dict[int, Request] = {}


def by_tenant(waiting: Mapping[int, Request]) -> dict[str, Line]:
    lines: dict[str, Line] = {}
    for number, one in waiting.items():
        lines.setdefault(one.tenant, Line()).waiters[number] = one
    return lines


def plainly(
    waiting: Mapping[int, Request],
    used: Mapping[str, float],
    virtual: float,
    weights: Mapping[str, float],
) -> list[Request]:
    """Each time whoever of the firsts begins first."""
    starts = {one.tenant: max(virtual, used.get(one.tenant, 0.0)) for one in waiting.values()}
    left, order = list(waiting.values()), []
    while left:
        heads = {one.tenant: one for one in reversed(left)}
        first = min(heads.values(), key=lambda one: (starts[one.tenant], one.number))
        starts[first.tenant] += first.tokens / weights.get(first.tenant, 1.0)
        left.remove(first)
        order.append(first)
    return order


TENANTS = st.sampled_from("abcdefgh")


@given(
    st.lists(st.tuples(TENANTS, st.integers(1, 300)), min_size=1, max_size=25),
    st.dictionaries(TENANTS, st.sampled_from([0.0, 5.0, 100.0, 250.0])),
    st.sampled_from([0.0, 100.0]),
    st.dictionaries(st.sampled_from("abc"), st.sampled_from([1e-9, 0.5, 3.0, 1e6])),
)
def test_the_order_is_that_of_fair_turns(
    arrivals: list[tuple[str, int]],
    used: dict[str, float],
    virtual: float,
    weights: dict[str, float],
) -> None:
    waiting = {n: Request(n, tenant, tokens) for n, (tenant, tokens) in enumerate(arrivals)}

    def weight_of(name: str) -> float:
        return weights.get(name, 1.0)

    found = in_turns(waiting, by_tenant(waiting), used, virtual, weight_of)
    assert list(found) == plainly(waiting, used, virtual, weights)


def test_of_thousands_of_tenants_only_the_first_are_looked_at() -> None:
    looked = []

    class Watched(dict[int, Request]):
        def __iter__(self) -> Iterator[int]:
            looked.append(self)
            return super().__iter__()

    waiting = {n: Request(n, str(n), 1) for n in range(3000)}
    lines = by_tenant(waiting)
    for line in lines.values():
        line.waiters = Watched(line.waiters)
    first = list(islice(in_turns(waiting, lines, {"0": 7.0}, 0.0, lambda name: 1.0), 32))
    assert [one.number for one in first] == list(range(1, 33))
    assert looked == []
