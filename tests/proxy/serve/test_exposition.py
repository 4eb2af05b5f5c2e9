from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import exposition
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from core.metrics import MetricsBoard
from proxy.serve.exposition import SLICE_LINES, BoardCollector, render

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(families: Iterable[Metric]) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def text(board: MetricsBoard, as_openmetrics: bool = False) -> str:
    return b"".join(render(board.collect().values(), as_openmetrics)).decode()


def test_the_three_kinds_as_prometheus_reads_them() -> None:
    board = MetricsBoard(2)
    for index in range(2):
        metrics = board.for_worker(index)
        metrics.counter("headrace_a_total", "All.", ("k",)).labels("v").inc(3)
        metrics.gauge("headrace_g", "G.").set(2)
        histogram = metrics.histogram("headrace_h_seconds", "H.", [0.1, 1])
        for value in (0.05, 0.5, 5):
            histogram.observe(value)
    assert text(board).split("# HELP headrace_a_total")[1].splitlines() == [
        " All.",
        "# TYPE headrace_a_total counter",
        'headrace_a_total{k="v"} 6.0',
        "# HELP headrace_g G.",
        "# TYPE headrace_g gauge",
        "headrace_g 4.0",
        "# HELP headrace_h_seconds H.",
        "# TYPE headrace_h_seconds histogram",
        'headrace_h_seconds_bucket{le="0.1"} 2.0',
        'headrace_h_seconds_bucket{le="1.0"} 4.0',
        'headrace_h_seconds_bucket{le="+Inf"} 6.0',
        "headrace_h_seconds_count 6.0",
        "headrace_h_seconds_sum 11.1",
    ]


def test_slices_joined_are_what_the_library_renders_whole() -> None:
    board = MetricsBoard(1, series_cap=1000)
    metrics = board.for_worker(0)
    for index in range(3 * SLICE_LINES):
        metrics.counter("headrace_a_total", "A.", ("k",)).labels(str(index)).inc(index)
        metrics.histogram("headrace_h", "H.", [1, 2], ("k",)).labels(str(index)).observe(1.5)
    pieces = list(render(board.collect().values(), False))
    assert max(piece.count(b"\n") for piece in pieces) <= SLICE_LINES + 2
    assert b"".join(pieces) == exposition.generate_latest(BoardCollector(board))
    whole = openmetrics.generate_latest(BoardCollector(board), version="1.0.0")
    assert text(board, True).encode() == whole


@given(st.lists(st.text(max_size=20), min_size=1, max_size=4, unique=True), st.text(max_size=20))
def test_any_label_value_comes_back_from_both_formats(values: list[str], other: str) -> None:
    board = MetricsBoard(1)
    counter = board.for_worker(0).counter("headrace_a_total", "A\\\n.", ("k", "l"))
    for number, value in enumerate(values):
        counter.labels(value, other).inc(number + 1)
    for parsed in (
        samples(parse_text(text(board))),
        samples(parse_openmetrics(text(board, True))),
    ):
        for number, value in enumerate(values):
            assert parsed["headrace_a_total", (("k", value), ("l", other))] == number + 1
