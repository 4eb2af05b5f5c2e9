"""From raw samples to figures and a verdict about the run. Decides.

Latency is that of whole answers alone: what failed, left or read slowly is counted apart. It is
counted from the due time, so that a client or server that falls behind hides nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from loadtest import server_side, stats
from loadtest.record import LEFT, OK, UNFINISHED, Record, Samples
from loadtest.result import (
    FORMAT,
    Counts,
    Histogram,
    Metric,
    Percentile,
    Result,
    Rows,
    Second,
    Verdict,
)
from loadtest.scenario import Scenario

QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
CONFIDENCE = 0.95

LAG_LIMIT_MS = 5.0
LAG_OF_TTFT = 0.05
LEAST_ACHIEVED = 0.98
MOST_BUSY = 0.8  # of the time: beyond it answers wait for the client's turn to read them

_GAPS = {"low": 0.01, "per_decade": 10, "count": 61}


def summarize(scenario: Scenario, seed: int, samples: Samples, about: dict[str, Any]) -> Result:
    begin = samples.began_at + scenario.warm_up_s
    end = samples.began_at + scenario.total_s
    if samples.interrupted:
        end = min(end, max(samples.ended_at, begin))
    measured = [record for record in samples.records if record.due_at >= begin]
    answers = [each for each in measured if each.outcome == OK and not each.slow]
    window = _Window(begin, end, seed)
    counts = _counts(samples, measured, begin, end)
    metrics = _metrics(answers, window)
    gaps = [gap for gap, at in zip(samples.gaps, samples.gap_due_at, strict=True) if at >= begin]
    due = [at for at in samples.gap_due_at if at >= begin]
    gap_metric = window.metric(*_ITL, [gap * 1e3 for gap in gaps], due)
    lag = window.of(*_LAG, measured)
    metrics += [each for each in (gap_metric, lag) if each is not None]
    metrics += _openings(samples, begin, window)
    kinds = sorted({record.kind for record in answers})
    measured_s = max(end - begin, 0.0)
    whole_s = max(samples.ended_at - samples.began_at, 1e-9)
    cpu, starved = samples.cpu_s / whole_s, samples.starved_s / whole_s
    verdict = judge(counts, metrics, cpu, starved)
    verdict.notes += samples.notes
    series = server_side.series_of(samples)
    shares = server_side.shares_of(*samples.counters)
    balance = server_side.balance_of(shares)
    return Result(
        format=FORMAT,
        verdict=verdict,
        interrupted=samples.interrupted,
        measured_s=measured_s,
        rates={
            **_rates(counts, measured_s, cpu, starved),
            **server_side.cpu_rates(series, counts, begin - samples.began_at),
            **({} if balance is None else {"balance": balance}),
        },
        counts=counts,
        metrics=metrics,
        by_kind={
            kind: _metrics([each for each in answers if each.kind == kind], window)
            for kind in (kinds if len(kinds) > 1 else ())
        },
        seconds=_seconds(samples),
        gaps=Histogram(
            unit="ms",
            low=_GAPS["low"],
            per_decade=int(_GAPS["per_decade"]),
            counts=_bins([gap * 1e3 for gap in gaps]),
        ),
        rows=_rows(answers, samples.began_at),
        about=about,
        series=series,
        happened=server_side.events_of(samples),
        phases=server_side.phases_of(answers),
        shares=shares,
    )


def judge(counts: Counts, metrics: Sequence[Metric], cpu: float, starved: float) -> Verdict:
    """`cpu`: what the client used of one core; `starved`: the part of the time it waited for one.

    A client that has no time left delays first tokens too, and so raises the bound for its own
    lag: the lag alone would not show it.
    """
    by_name = {metric.name: metric for metric in metrics}
    reasons, notes = [], []
    lag, ttft = by_name.get("send lag"), by_name.get("ttft")
    if not counts.ok:
        reasons.append("no answer was measured")
    if lag is not None:
        limit = LAG_LIMIT_MS
        if ttft is not None:
            limit = max(limit, LAG_OF_TTFT * (ttft.percentiles[0].value or 0.0))
        # A refused P99 is no excuse: with few samples the greatest stands for it.
        tail = next(each.value for each in lag.percentiles if each.quantile == 0.99)
        worst, name = (lag.greatest, "greatest") if tail is None else (tail, "p99")
        if worst > limit:
            reasons.append(f"{name} send lag {worst:.1f} ms is above {limit:.1f} ms")
    if counts.planned and counts.started < LEAST_ACHIEVED * counts.planned:
        share = counts.started / counts.planned
        reasons.append(f"only {share:.1%} of the requests began in time, {LEAST_ACHIEVED:.0%} must")
    if cpu + starved > MOST_BUSY:
        reasons.append(
            f"the client used {cpu:.0%} of a core and waited {starved:.0%} of the time for one, "
            f"{MOST_BUSY:.0%} may be at most"
        )
    if ttft is not None:
        refused = [each for each in ttft.percentiles if each.value is None]
        notes += [
            f"no p{each.quantile * 100:g}: {ttft.count} answers, {each.needed} are needed"
            for each in refused
        ]
    if counts.failed:
        notes.append(f"{counts.failed} requests failed; they are no part of the latencies")
    return Verdict(valid=not reasons, reasons=reasons, notes=notes)


_LAG = (
    "send lag",
    "begin - due time",
    lambda record: record.started_at - record.due_at,
)
_ITL = ("itl", "gaps between pieces of content, all answers pooled")

Of = Callable[[Record], float | None]


class _Window:
    """The measured part of a run, and how a metric is made there."""

    def __init__(self, begin: float, end: float, seed: int) -> None:
        self._begin = begin
        self._end = end
        self._seed = seed

    def __repr__(self) -> str:
        return f"<_Window {self._end - self._begin:.1f} s>"

    def of(self, name: str, formula: str, get: Of, records: Iterable[Record]) -> Metric | None:
        """In milliseconds; None without samples."""
        pairs = [(get(record), record.due_at) for record in records]
        values = [value * 1e3 for value, _ in pairs if value is not None]
        due = [at for value, at in pairs if value is not None]
        return self.metric(name, formula, values, due)

    def metric(
        self, name: str, formula: str, values: Sequence[float], instants: Sequence[float]
    ) -> Metric | None:
        if not values:
            return None
        ordered = sorted(values)
        windows = stats.into_windows(values, instants, self._begin, self._end)
        drawn = stats.replicates(windows, QUANTILES, self._seed)
        percentiles = []
        for quantile, resampled in zip(QUANTILES, drawn, strict=True):
            needed = stats.needed(quantile)
            if len(values) < needed:
                percentiles.append(Percentile(quantile=quantile, value=None, needed=needed))
                continue
            low, high = stats.interval(resampled, CONFIDENCE)
            value = stats.percentile(ordered, quantile)
            percentiles.append(
                Percentile(quantile=quantile, value=value, low=low, high=high, needed=needed)
            )
        return Metric(
            name=name,
            unit="ms",
            formula=formula,
            count=len(values),
            mean=sum(values) / len(values),
            greatest=ordered[-1],
            percentiles=percentiles,
        )


def tpot_s(record: Record) -> float | None:
    """None for an answer of one token."""
    if record.output_tokens < 2:
        return None
    return (record.last_at - record.first_at) / (record.output_tokens - 1)


_OF_ANSWERS: tuple[tuple[str, str, Of], ...] = (
    ("ttft", "first content - due time", lambda r: r.first_at - r.due_at),
    ("ttft from send", "first content - request written", lambda r: r.first_at - r.sent_at),
    ("e2e", "end of the answer - due time", lambda r: r.ended_at - r.due_at),
    ("tpot", "(last content - first content) / (tokens - 1)", tpot_s),
    ("greatest gap", "the longest gap between pieces of each answer", lambda r: r.gap_max),
)


def _metrics(answers: Sequence[Record], window: _Window) -> list[Metric]:
    made = (window.of(name, formula, get, answers) for name, formula, get in _OF_ANSWERS)
    return [metric for metric in made if metric is not None]


def _openings(samples: Samples, begin: float, window: _Window) -> list[Metric]:
    opened = [opening for opening in samples.openings if opening.at >= begin]
    secure = [opening for opening in opened if opening.tls_s]
    made = (
        window.metric(
            "connect",
            "TCP connection, name looked up",
            [opening.connect_s * 1e3 for opening in opened],
            [opening.at for opening in opened],
        ),
        window.metric(
            "tls",
            "TLS handshake after it",
            [opening.tls_s * 1e3 for opening in secure],
            [opening.at for opening in secure],
        ),
    )
    return [metric for metric in made if metric is not None]


def _counts(samples: Samples, measured: Sequence[Record], begin: float, end: float) -> Counts:
    outcomes = Counter(record.outcome for record in measured)
    errors = {
        outcome: count
        for outcome, count in sorted(outcomes.items())
        if outcome not in (OK, LEFT, UNFINISHED)
    }
    first_turns = [record for record in measured if record.turn == 0]
    opened = [opening for opening in samples.openings if opening.at >= begin]
    planned = sum(begin <= at < end for at in samples.planned)
    in_time = sum(record.started_at <= end for record in first_turns)
    examples: dict[str, str] = {}
    for record in measured:
        if record.outcome in errors and record.detail:
            examples.setdefault(record.outcome, record.detail)
    return Counts(
        planned=planned,
        started=in_time,
        ok=sum(record.outcome == OK and not record.slow for record in measured),
        slow=sum(record.outcome == OK and record.slow for record in measured),
        left=outcomes[LEFT],
        unfinished=outcomes[UNFINISHED],
        failed=sum(errors.values()),
        warm_up=len(samples.records) - len(measured),
        errors=errors,
        statuses={
            str(status): count
            for status, count in sorted(Counter(each.status for each in measured).items())
            if status
        },
        examples=examples,
        connections=len(opened),
        resumed=sum(opening.resumed for opening in opened),
        reconnects=samples.reconnects,
        prompt_tokens=sum(record.prompt_tokens for record in measured),
        cached_tokens=sum(record.cached_tokens for record in measured),
        output_tokens=sum(record.output_tokens for record in measured),
    )


def _rates(counts: Counts, measured_s: float, cpu: float, starved: float) -> dict[str, float]:
    if not measured_s:
        return {}
    cached = counts.cached_tokens / counts.prompt_tokens if counts.prompt_tokens else 0.0
    return {
        "sessions_per_s": counts.started / measured_s,
        "answers_per_s": (counts.ok + counts.slow) / measured_s,
        "output_tokens_per_s": counts.output_tokens / measured_s,
        "cached_share": cached,
        "client_cpu": cpu,
        "client_starved": starved,
    }


def _seconds(samples: Samples) -> list[Second]:
    length = int(max(samples.ended_at - samples.began_at, 0.0)) + 1
    seconds = [Second() for _ in range(length)]
    times: list[list[float]] = [[] for _ in seconds]

    def index(at: float) -> int:
        return min(max(int(at - samples.began_at), 0), length - 1)

    for at in samples.planned:
        if at <= samples.ended_at:
            seconds[index(at)].due += 1
    for record in samples.records:
        due = index(record.due_at)
        seconds[index(record.started_at)].started += 1
        seconds[index(record.ended_at)].tokens += record.output_tokens
        if record.outcome not in (OK, LEFT, UNFINISHED):
            seconds[due].failed += 1
        elif record.outcome == OK and not record.slow:
            times[due].append((record.first_at - record.due_at) * 1e3)
    for second, values in zip(seconds, times, strict=True):
        if values:
            values.sort()
            second.ttft_p50_ms, second.ttft_max_ms = stats.percentile(values, 0.5), values[-1]
    return seconds


def _bins(values: Sequence[float]) -> list[int]:
    return stats.log_bins(values, _GAPS["low"], int(_GAPS["per_decade"]), int(_GAPS["count"]))


def _rows(answers: Sequence[Record], began_at: float) -> Rows:
    tpot = [tpot_s(record) for record in answers]
    return Rows(
        due_s=[round(record.due_at - began_at, 4) for record in answers],
        ttft_ms=[round((record.first_at - record.due_at) * 1e3, 4) for record in answers],
        e2e_ms=[round((record.ended_at - record.due_at) * 1e3, 4) for record in answers],
        tpot_ms=[None if value is None else round(value * 1e3, 4) for value in tpot],
    )
