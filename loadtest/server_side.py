"""What a run tells of the server: its processes, its phases, its replicas. Decides."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest import stats
from loadtest.record import Record, Samples
from loadtest.result import Counts, Event, Phase, Series, Share


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


def events_of(samples: Samples) -> list[Event]:
    return [
        Event(name=each.name, at_s=round(each.at - samples.began_at, 3), problem=each.problem)
        for each in samples.happened
    ]


def phases_of(answers: Sequence[Record]) -> list[Phase]:
    """In the order of the answer that names the most. A phase that an answer does not name took
    it no time."""
    told = [answer.timing for answer in answers if answer.timing]
    longest = max(told, key=len, default={})
    names = list(dict.fromkeys([*longest, *(name for timing in told for name in timing)]))
    found = []
    for name in names:
        values = sorted(timing.get(name, 0.0) for timing in told)
        found.append(
            Phase(
                name=name,
                count=sum(name in timing for timing in told),
                mean=sum(values) / len(values),
                p50=stats.percentile(values, 0.5),
                p95=stats.percentile(values, 0.95),
                p99=stats.percentile(values, 0.99),
            )
        )
    return found


COUNTERS = {
    "requests": "vllm:request_success_total",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "output_tokens": "vllm:generation_tokens_total",
    "cached_tokens": "vllm:prefix_cache_hits_total",
}
"""vLLM's name of each figure of a `Share`."""


def shares_of(
    before: dict[str, dict[str, float]], after: dict[str, dict[str, float]]
) -> list[Share]:
    """Of each replica's counters before and after the run, by its URL. One that began anew
    meanwhile counts from zero; one that is gone at the end is left out."""
    found = []
    for replica, counters in after.items():
        grown = {}
        for field, name in COUNTERS.items():
            first, last = before.get(replica, {}).get(name, 0.0), counters.get(name, 0.0)
            grown[field] = last - first if last >= first else last
        found.append(Share(replica=replica, **grown))
    return found


def balance_of(shares: Sequence[Share]) -> float | None:
    """The most tokens (new ones of prompts, and of answers) of a replica by the mean. None: no
    replica did anything."""
    work = [each.prompt_tokens - each.cached_tokens + each.output_tokens for each in shares]
    return max(work) * len(work) / sum(work) if work and sum(work) > 0 else None
