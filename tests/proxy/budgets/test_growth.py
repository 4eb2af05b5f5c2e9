"""Which phases are named as slower than before."""

from __future__ import annotations

import pytest

from proxy.budgets.growth import Growth, Sums, grown
from proxy.phases import PHASES

USUAL = {phase: Sums(0.01 * 100, 100) for phase in PHASES}


@pytest.mark.parametrize("phase", PHASES)
def test_twenty_milliseconds_more_are_named_in_any_phase(phase: str) -> None:
    now = {**USUAL, phase: Sums(0.03 * 10, 10)}
    assert grown(USUAL, now) == [Growth(phase, pytest.approx(0.01), pytest.approx(0.03))]


def test_the_one_that_grew_most_is_first_and_a_new_one_grew_from_nothing() -> None:
    usual = {"route": Sums(0.01, 10), "relay": Sums(20.0, 10)}
    now = {"relay": Sums(2.04, 1), "route": Sums(0.1, 2), "queue": Sums(1.0, 2)}
    assert [growth.phase for growth in grown(usual, now)] == ["queue", "route"]


def test_nothing_has_grown_without_a_before_or_without_a_now() -> None:
    none = {phase: Sums(0.0, 0) for phase in PHASES}
    assert grown({}, USUAL) == grown(none, USUAL) == grown(USUAL, none) == grown(USUAL, {}) == []
