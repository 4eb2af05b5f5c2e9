"""Tiers: the usual ones, and rules that name one that is not there."""

from __future__ import annotations

import pytest

from core.section import Contradictions
from proxy.budgets.config import BudgetsConfig, TierConfig, TierRule


def test_the_usual_tiers_fit_into_their_totals() -> None:
    tiers = BudgetsConfig().tiers
    assert list(tiers) == ["voice", "chat", "rag"]
    for tier in tiers.values():
        parts = [
            getattr(tier, name) or 0.0 for name in tier.__struct_fields__ if name != "total_ms"
        ]
        assert sum(parts) <= tier.total_ms


def test_a_tier_that_is_not_there_is_named_with_its_place() -> None:
    with pytest.raises(Contradictions) as caught:
        BudgetsConfig(default="voic", rules=(TierRule(tier="chat"), TierRule(tier="x")))
    places = [place for place, _ in caught.value.faults]
    assert places == [".default", ".rules[1].tier"]
    assert "voice" in caught.value.faults[0][1]


def test_own_tiers_take_the_place_of_the_usual_ones() -> None:
    config = BudgetsConfig(tiers={"fast": TierConfig(total_ms=100)}, default="fast")
    assert list(config.tiers) == ["fast"]
