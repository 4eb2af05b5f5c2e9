"""Histograms of a metrics page, between two readings of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

Labels = tuple[str, ...]
"""Label values, in the order of the labels' names."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """`counts[i]` observations were at most `bounds[i]` and more than the bound before; the last
    bound is infinite."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]

    @property
    def count(self) -> float:
        return sum(self.counts)

    def quantile(self, share: float) -> float | None:
        """Interpolated inside its bucket; the greatest finite bound when it is beyond that. None
        without observations."""
        rank = share * self.count
        if not self.count:
            return None
        before = 0.0
        low = 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count and before + count >= rank:
                return (
                    low if bound == float("inf") else low + (bound - low) * (rank - before) / count
                )
            before += count
            low = bound
        return low

    def since(self, earlier: Distribution | None) -> Distribution:
        """What came after `earlier`; all of it when counting has begun anew."""
        if earlier is None or earlier.count > self.count:
            return self
        counts = zip(self.counts, earlier.counts, strict=True)
        return Distribution(self.bounds, tuple(max(now - then, 0.0) for now, then in counts))


class Page:
    """One reading of `/metrics`, by the names of samples."""

    def __init__(self, text: str) -> None:
        self._samples: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._samples.setdefault(sample.name, []).append((sample.labels, sample.value))

    def __repr__(self) -> str:
        return f"<Page {len(self._samples)} names>"

    def values(self, name: str, labels: Sequence[str]) -> dict[Labels, float]:
        """Samples of `name`, by the values of `labels`."""
        found: dict[Labels, float] = {}
        for sample, value in self._samples.get(name, ()):
            key = tuple(sample.get(label, "") for label in labels)
            found[key] = found.get(key, 0.0) + value
        return found

    def histograms(self, name: str, labels: Sequence[str]) -> dict[Labels, Distribution]:
        """The histogram `name`, by the values of `labels`; others are added together."""
        buckets: dict[Labels, dict[float, float]] = {}
        for sample, value in self._samples.get(f"{name}_bucket", ()):
            key = tuple(sample.get(label, "") for label in labels)
            series = buckets.setdefault(key, {})
            bound = float(sample["le"])
            series[bound] = series.get(bound, 0.0) + value
        return {key: _distribution(series) for key, series in buckets.items()}


def _distribution(cumulative: Mapping[float, float]) -> Distribution:
    bounds = tuple(sorted(cumulative))
    counts = []
    before = 0.0
    for bound in bounds:
        counts.append(cumulative[bound] - before)
        before = cumulative[bound]
    return Distribution(bounds, tuple(counts))
