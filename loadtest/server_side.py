"""What a run tells of the server: what its processes used. Decides."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.record import Samples
from loadtest.result import Counts, Series


def series_of(samples: Samples) -> list[Series]:
    """In seconds from the run's begin."""
    return [
        Series(
            of=seen.of,
            what=seen.what,
            unit=seen.unit,
            at_s=[round(at - samples.began_at, 3) for at in seen.at],
            values=list(seen.values),
        )
        for seen in samples.seen
    ]


def cpu_rates(series: Sequence[Series], counts: Counts, begin_s: float) -> dict[str, float]:
    """CPU of all processes that were watched, from `begin_s` on, for each answer and token that was
    measured, in microseconds. {} without any."""
    clocks = [each for each in series if each.what == "cpu"]
    answers = counts.ok + counts.slow + counts.left
    if not clocks or not answers:
        return {}
    used_us = 1e6 * sum(_since(each, begin_s) for each in clocks)
    found = {"server_cpu_us_per_answer": used_us / answers}
    if counts.output_tokens:
        found["server_cpu_us_per_token"] = used_us / counts.output_tokens
    return found


def _since(series: Series, begin_s: float) -> float:
    before = [v for at, v in zip(series.at_s, series.values, strict=True) if at <= begin_s]
    return series.values[-1] - (before[-1] if before else series.values[0])
