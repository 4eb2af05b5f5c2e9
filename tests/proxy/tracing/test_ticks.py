"""Which instants of a stream are kept."""

from __future__ import annotations

import pytest

from proxy.tracing.ticks import MOST, Ticks


@pytest.mark.parametrize("reads", [0, 1, MOST, MOST + 1, 5000])
def test_few_are_kept_evenly_and_the_clock_is_told_as_it_is(reads: int) -> None:
    instants = iter(range(1, reads + 1))
    ticks = Ticks(lambda: float(next(instants)))
    assert [ticks() for _ in range(reads)] == list(range(1, reads + 1))
    assert len(ticks.kept) == reads if reads <= MOST else MOST // 2 <= len(ticks.kept) <= MOST
    apart = ticks.kept[0][0] if ticks.kept else 1
    assert ticks.kept == [(n, float(n)) for n in range(apart, reads + 1, apart)]
