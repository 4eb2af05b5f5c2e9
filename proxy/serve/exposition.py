"""Metrics as Prometheus and OpenMetrics read them, in slices that do not hold up an event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import accumulate, chain, islice
from types import MappingProxyType

from prometheus_client import CONTENT_TYPE_LATEST as TEXT_1_0
from prometheus_client import exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from core.metric_rows import Family, FamilyEntry, Labels
from core.metrics import MetricsBoard
from proxy.serve.exemplars import Exemplars, by_bucket

CONTENT_TYPE_TEXT = TEXT_1_0.replace("1.0.0", "0.0.4")
CONTENT_TYPE_OPENMETRICS = openmetrics.CONTENT_TYPE_LATEST
SLICE_LINES = 100
"""Lines rendered between two turns of the event loop, at about 3 us each."""
_NONE: Exemplars = MappingProxyType({})


class BoardCollector(Collector):
    """The families of a board for a prometheus_client registry or encoder."""

    def __init__(self, board: MetricsBoard) -> None:
        self._board = board

    def __repr__(self) -> str:
        return f"<BoardCollector of {self._board}>"

    def collect(self) -> Iterator[Metric]:
        for family in self._board.collect().values():
            yield to_metric(family.entry, family.series.items())


class _One(Collector):
    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return (self._metric,)


def to_metric(
    entry: FamilyEntry,
    series: Iterable[tuple[Labels, list[float]]],
    exemplars: Exemplars = _NONE,
) -> Metric:
    """prometheus_client's form of some series of one family."""
    if entry.kind == "histogram":
        histogram = HistogramMetricFamily(entry.name, entry.help, labels=entry.labels)
        bounds = [*map(floatToGoString, entry.bounds), "+Inf"]
        for labels, (total, *counts) in series:
            known = exemplars.get((entry.name, labels))
            beside: Mapping[int, Exemplar] = by_bucket(entry.bounds, known) if known else {}
            buckets = [
                (bound, count, beside[place])
                if place in beside and counts[place]
                else (bound, count)
                for place, (bound, count) in enumerate(zip(bounds, accumulate(counts), strict=True))
            ]
            histogram.add_metric(labels, buckets, total)
        return histogram
    kind = CounterMetricFamily if entry.kind == "counter" else GaugeMetricFamily
    metric = kind(entry.name, entry.help, labels=entry.labels)
    for labels, (value,) in series:
        metric.add_metric(labels, value)
    return metric


def render(
    families: Iterable[Family], as_openmetrics: bool, exemplars: Exemplars = _NONE
) -> Iterator[bytes]:
    """The exposition in pieces of about SLICE_LINES lines; joined they are the whole answer.
    `exemplars` are for OpenMetrics, the other format has none."""
    encode: Callable[[Collector], bytes] = exposition.generate_latest
    if as_openmetrics:
        encode = partial(openmetrics.generate_latest, version="1.0.0")
    for family in families:
        per_slice = max(1, SLICE_LINES // (family.entry.width + 1))
        for number, series in enumerate(_batches(family.series.items(), per_slice)):
            metric = to_metric(family.entry, series, exemplars)
            text = encode(_One(metric)).removesuffix(b"# EOF\n")
            yield _without_head(text) if number else text
    if as_openmetrics:
        yield b"# EOF\n"


def _batches(
    series: Iterable[tuple[Labels, list[float]]], size: int
) -> Iterator[Iterable[tuple[Labels, list[float]]]]:
    rest = iter(series)
    for first in rest:
        yield chain((first,), list(islice(rest, size - 1)))


def _without_head(text: bytes) -> bytes:
    """The samples alone: HELP and TYPE may be said only once."""
    while text.startswith(b"# "):
        text = text.partition(b"\n")[2]
    return text
