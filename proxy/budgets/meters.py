"""The metrics behind `headrace budget`: what each part took, by tier, and how often too long."""

from __future__ import annotations

from collections.abc import Iterable

from core.metrics import Metrics
from proxy.budgets.judge import PARTS, Judgement

_BOUNDS = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.008, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.065),
    *(0.08, 0.1, 0.13, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0),
)
SECONDS = "headrace_budget_seconds"
BREACHES = "headrace_budget_breaches_total"
EXCHANGES = "headrace_budget_exchanges_total"


class BudgetMeters:
    """Bound once for each tier and part."""

    def __init__(self, metrics: Metrics, tiers: Iterable[str]) -> None:
        took = metrics.histogram(
            SECONDS, "How long parts of exchanges took, by tier", _BOUNDS, ("tier", "part")
        )
        breaches = metrics.counter(
            BREACHES, "Exchanges of which a part took longer than its tier allows", ("tier", "part")
        )
        exchanges = metrics.counter(EXCHANGES, "Exchanges that were judged", ("tier",))
        tiers = tuple(tiers)
        self._took = {tier: {part: took.labels(tier, part) for part in PARTS} for tier in tiers}
        # By tier and the parts that there were: what each took.
        self._noted: dict[tuple[str, ...], list[tuple[float, ...]]] = {}
        self._breaches = {
            tier: {part: breaches.labels(tier, part) for part in PARTS} for tier in tiers
        }
        self._exchanges = {tier: exchanges.labels(tier) for tier in tiers}

    def __repr__(self) -> str:
        return f"<BudgetMeters {list(self._exchanges)}>"

    def note(self, judgement: Judgement) -> None:
        """For `tell`, which costs less for many in a row."""
        tier, took, over = judgement
        for part in over:
            self._breaches[tier][part].inc()
        key = (tier, *took)
        if key not in self._noted:
            self._noted[key] = []
        self._noted[key].append(tuple(took.values()))

    def tell(self) -> None:
        """Put into the metrics what was noted."""
        for (tier, *parts), rows in self._noted.items():
            self._exchanges[tier].inc(len(rows))
            for part, column in zip(parts, zip(*rows, strict=True), strict=True):
                self._took[tier][part].observe_all(column)
        self._noted.clear()
