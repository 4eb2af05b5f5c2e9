"""Counters, gauges and histograms that several processes share without asking one another.

Each worker writes its own row (see `core/metric_rows.py`); whoever is asked for the metrics sums
the rows. When a worker dies the supervisor folds its row into a base row, so that counts survive it
exactly. Bind a label set once, outside hot code: an observation on a bound child is a few loads and
stores. Not for use from several threads: instruments belong to the thread of the event loop.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Collection, Sequence
from itertools import pairwise, repeat
from typing import Any, ClassVar, Generic, NoReturn, Self, TypeVar, cast

import msgspec

from core.metric_rows import (
    ROW_BYTES,
    Cells,
    Family,
    FamilyEntry,
    Kind,
    Labels,
    MetricRow,
    Reading,
    clean,
    merge,
    void,
)
from core.shared_memory import SharedRows

SERIES_CAP = 200
"""Label sets per family and row; later ones are counted under the label value `other`."""
OTHER = "other"
READ_TRIES = 40
"""A fold takes about as long as a reading; a supervisor that died in one must not stop readers."""

_log = logging.getLogger("headrace.metrics")
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")


class _Unbound:
    """Stands where the memory would be in a labelled family."""

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("this metric has labels: call .labels(...) first")

    __getitem__ = __setitem__ = _refuse


class _Instrument:
    """A family and, when it has no labels or `labels` made it, one bound series."""

    __slots__ = ("_cells", "_family", "_slot")
    kind: ClassVar[Kind]

    def __init__(self, family: _Series[Any], cells: Any, slot: int) -> None:
        self._family = family
        self._cells = cells
        self._slot = slot

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._family.entry.name}>"

    def labels(self, *values: str) -> Self:
        """The series with these label values, always the same object: bind it once."""
        # One look-up and no further call: some label sets are only known per request.
        child: Self | None = self._family.children.get(values)
        return child if child is not None else cast(Self, self._family.bind(values))

    def remove(self, *values: str) -> None:
        """Show the series with these label values no longer. Whoever still has it bound observes
        into the void; `labels` begins a new one."""
        self._family.unbind(values)


class Counter(_Instrument):
    """Only ever rises."""

    __slots__ = ()
    kind = "counter"

    def inc(self, amount: float = 1.0) -> None:
        self._cells[self._slot] += amount


class Gauge(_Instrument):
    """Rises and falls; the exposition shows the sum over the living workers."""

    __slots__ = ()
    kind = "gauge"

    def set(self, value: float) -> None:
        self._cells[self._slot] = value

    def inc(self, amount: float = 1.0) -> None:
        self._cells[self._slot] += amount

    def dec(self, amount: float = 1.0) -> None:
        self._cells[self._slot] -= amount


class Histogram(_Instrument):
    """Counts observations by upper bound (`value <= bound`) and sums them."""

    __slots__ = ("_bounds", "_first")
    kind = "histogram"

    def __init__(self, family: _Series[Any], cells: Any, slot: int) -> None:
        super().__init__(family, cells, slot)
        self._bounds = family.entry.bounds
        self._first = slot + 1

    def observe(self, value: float) -> None:
        cells = self._cells
        cells[self._first + bisect_left(self._bounds, value)] += 1.0
        cells[self._slot] += value

    def observe_all(self, values: Collection[float]) -> None:
        """As `observe` for each, at less than its cost for many."""
        cells, first = self._cells, self._first
        places = Tally(map(bisect_left, repeat(self._bounds), values))
        for place, times in places.items():
            cells[first + place] += times
        cells[self._slot] += sum(values)

    def observe_many(self, value: float, times: int) -> None:
        """As so many calls of `observe` with the same value."""
        cells = self._cells
        cells[self._first + bisect_left(self._bounds, value)] += times
        cells[self._slot] += value * times

    def observe_counts(self, counts: Sequence[int], total: float) -> None:
        """So many observations in each bucket, the last one beyond all bounds; `total`: their
        sum."""
        cells, first = self._cells, self._first
        for place, count in enumerate(counts):
            if count:
                cells[first + place] += count
        cells[self._slot] += total


I = TypeVar("I", bound=_Instrument)  # noqa: E741


class _Series(Generic[I]):
    """The series of one family in one row."""

    __slots__ = ("_cap", "_kind", "_metrics", "_number", "children", "entry", "public")

    def __init__(self, metrics: Metrics, kind: type[I], entry: FamilyEntry, cap: int) -> None:
        self.entry = entry
        self._metrics = metrics
        self._kind = kind
        self._cap = cap
        self._number: int | None = None
        self.children: dict[Labels, I] = {}
        self.public: I = kind(self, _Unbound(), 0) if entry.labels else self.bind(())

    def bind(self, values: Labels) -> I:
        """The series for label values that were not seen before."""
        if len(values) != len(self.entry.labels):
            raise ValueError(f"{self.entry.name} has the labels {self.entry.labels}, not {values}")
        if len(self.children) >= self._cap:
            values = (OTHER,) * len(values)
            if (other := self.children.get(values)) is not None:
                return other
        cells, slot = self._place(tuple(clean(value) for value in values))
        child = self.children[values] = self._kind(self, cells, slot)
        return child

    def unbind(self, values: Labels) -> None:
        child = self.children.get(values)
        if child is None or OTHER in values:
            return
        del self.children[values]
        cells, slot = child._cells, child._slot
        child._cells, child._slot = void(self.entry.width), 0
        if isinstance(child, Histogram):
            child._first = 1
        row = self._metrics.row
        if cells is row.cells and self._number is not None:
            labels = tuple(clean(value) for value in values)
            row.remove_series(self._number, self.entry.width, labels, slot)

    def _place(self, values: Labels) -> tuple[Cells, int]:
        row = self._metrics.row
        if self._number is None:
            self._number = row.add_family(self.entry)
        slot = None
        if self._number is not None:
            slot = row.add_series(self._number, self.entry.width, values)
        if slot is None:
            self._metrics.row_full(self.entry.name)
            return void(self.entry.width), 0
        return row.cells, slot


class Metrics:
    """One process's metrics. Registering the same metric again returns the same family."""

    def __init__(self, board: MetricsBoard, row: MetricRow, series_cap: int = SERIES_CAP) -> None:
        self.board = board
        self.row = row
        self._series_cap = series_cap
        self._families: dict[str, _Series[Any]] = {}
        self._warned = False
        self._dropped = self.counter(
            "headrace_metrics_dropped_series_total", "Series not kept because their row was full."
        )

    def __repr__(self) -> str:
        return f"<Metrics {len(self._families)} families in {self.row}>"

    @classmethod
    def private(cls) -> Metrics:
        """Metrics of a process that shares them with nobody."""
        return MetricsBoard(1).for_worker(0)

    def counter(self, name: str, help: str, labels: tuple[str, ...] = ()) -> Counter:
        """Raises ValueError unless `name` ends in `_total`, or if it is taken differently."""
        if not name.endswith("_total"):
            raise ValueError(f"the counter {name} must end in _total")
        return self._register(Counter, FamilyEntry("counter", name, help, tuple(labels), ()))

    def gauge(self, name: str, help: str, labels: tuple[str, ...] = ()) -> Gauge:
        """Raises ValueError if the name is taken by another definition."""
        return self._register(Gauge, FamilyEntry("gauge", name, help, tuple(labels), ()))

    def histogram(
        self, name: str, help: str, buckets: Sequence[float], labels: tuple[str, ...] = ()
    ) -> Histogram:
        """`buckets`: ascending upper bounds. Raises ValueError as the others do."""
        bounds = tuple(float(bound) for bound in buckets if bound != float("inf"))
        if not bounds or any(a >= b for a, b in pairwise(bounds)):
            raise ValueError(f"the buckets of {name} must ascend")
        entry = FamilyEntry("histogram", name, help, tuple(labels), bounds)
        return self._register(Histogram, entry)

    def value(self, name: str, *labels: str) -> float:
        """Summed over all rows (a histogram's count of observations); 0.0 if there is none."""
        family = self.board.collect().get(name)
        values = family.series.get(labels) if family else None
        if family is None or values is None:
            return 0.0
        return sum(values[1:]) if family.entry.kind == "histogram" else values[0]

    def add(self, reading: Reading) -> None:
        """Add another row's series to this one. Raises ValueError if the definitions disagree."""
        entry, labels, values = reading
        child = self._register(_KINDS[entry.kind], entry).labels(*labels)
        for offset, value in enumerate(values):
            child._cells[child._slot + offset] += value

    def row_full(self, name: str) -> None:
        """One warning and a count; what does not fit is observed into the void."""
        self._dropped.inc()
        if not self._warned:
            self._warned = True
            _log.warning("no room for more metric series, the first one dropped is of %s", name)

    def _register(self, kind: type[I], entry: FamilyEntry) -> I:
        series: _Series[I] | None = self._families.get(entry.name)
        if series is None:
            for name in (entry.name, *entry.labels):
                if not _NAME.match(name):
                    raise ValueError(f"{name!r} is no name for a metric or a label")
            series = _Series(self, kind, entry, self._series_cap)
            self._families[entry.name] = series
        elif not series.entry.agrees_with(entry):
            raise ValueError(f"the metric {entry.name} is already defined otherwise")
        return series.public


_KINDS: dict[Kind, type[_Instrument]] = {
    "counter": Counter,
    "gauge": Gauge,
    "histogram": Histogram,
}


class MetricsBoard:
    """The rows of all workers and a base row, which the supervisor writes. Made before the fork."""

    def __init__(self, workers: int, series_cap: int = SERIES_CAP) -> None:
        memory = SharedRows(workers + 1, ROW_BYTES)
        self._rows = [MetricRow(memory.row(index)) for index in range(workers)]
        self._base = MetricRow(memory.row(workers))
        self._series_cap = series_cap
        self._mine: dict[int, Metrics] = {}
        self.supervisor = Metrics(self, self._base, series_cap)
        """The supervisor's own metrics, in the base row; of no use to workers."""

    def __repr__(self) -> str:
        return f"<MetricsBoard {len(self._rows)} workers>"

    def for_worker(self, index: int) -> Metrics:
        """The metrics that worker `index` writes; call it in that worker.

        Raises RuntimeError if the row still holds what another process wrote.
        """
        if index not in self._mine:
            row = self._rows[index]
            if row.used_slots:
                raise RuntimeError(f"metrics row {index} belongs to another process")
            self._mine[index] = Metrics(self, row, self._series_cap)
        return self._mine[index]

    def fold(self, index: int) -> None:
        """Keep a dead worker's counters and histograms, drop its gauges, clear its row.

        For the supervisor, after it has reaped the worker and before it forks the next.
        """
        self._mine.pop(index, None)
        row = self._rows[index]
        readings = row.read()
        self._base.advance_epoch()
        try:
            for reading in readings:
                if reading[0].kind != "gauge":
                    self._fold_series(reading)
            row.clear()
        finally:
            self._base.advance_epoch()

    def _fold_series(self, reading: Reading) -> None:
        try:
            self.supervisor.add(reading)
        except ValueError as error:  # a worker defined the metric unlike an earlier one
            _log.warning("metric lost with its worker: %s", error)

    def collect(self) -> dict[str, Family]:
        """Name -> family summed over all rows; callable in any process, from any thread."""
        families: dict[str, Family] = {}
        for _ in range(READ_TRIES):
            epoch = self._base.epoch
            try:
                families = merge(row.read() for row in (*self._rows, self._base))
            except (msgspec.DecodeError, IndexError, ValueError):
                continue  # a row was cleared while it was read
            if epoch % 2 == 0 and epoch == self._base.epoch:
                break
        return families
