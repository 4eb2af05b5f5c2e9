"""Gaps between the events of streams: which bucket, what sum, and their way to the metrics."""

from __future__ import annotations

from core.metrics import Metrics
from proxy.token_gaps import BOUNDS, GapMeters, StreamGaps, TokenGaps

NAME = "headrace_inter_token_latency_seconds"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_each_gap_is_in_its_bucket_and_what_came_together_is_no_time_apart() -> None:
    clock, gaps = Clock(), TokenGaps()
    stream = StreamGaps(gaps, clock)
    stream.begin(100.0)
    stream.together(1)
    for at, events in ((100.004, 1), (100.027, 3), (120.0, 1)):
        clock.now = at
        stream.note(events)
    expected = {0: 1 + 2, BOUNDS.index(0.005): 1, BOUNDS.index(0.025): 1, len(BOUNDS): 1}
    assert {place: n for place, n in enumerate(gaps.counts) if n} == expected
    assert gaps.seconds == 0  # as long as it goes on
    stream.end()
    stream.end()
    assert gaps.seconds == 20.0


def test_streams_of_a_model_go_to_the_metrics_together_and_once() -> None:
    metrics, clock = Metrics.private(), Clock()
    meters = GapMeters(metrics)
    one, two = (StreamGaps(meters.of("a"), clock) for _ in range(2))
    other = StreamGaps(meters.of("b"), clock)
    for stream in (one, two, other):
        stream.begin(0.0)
    clock.now = 0.02
    for stream in (one, two, other):
        stream.note(1)
    meters.tell()
    meters.tell()
    assert (metrics.value(NAME, "a"), metrics.value(NAME, "b")) == (2, 1)
    clock.now = 0.05
    one.note(1)  # counted where it was before
    for stream in (one, two, other):
        stream.end()
    meters.tell()
    series = metrics.board.collect()[NAME].series
    assert (sum(series["a",][1:]), round(series["a",][0], 6)) == (3, 0.07)
    assert (sum(series["b",][1:]), round(series["b",][0], 6)) == (1, 0.02)
