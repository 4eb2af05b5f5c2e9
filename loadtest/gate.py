"""Is a candidate slower than its base? Decides, from answers of both that ran at the same time.

Each request was sent to one of the two, drawn at random, so whatever the machine did meanwhile
happened to both. The time is cut into windows; a window's statistic is the logarithm of the ratio
of the candidate's percentile to the base's, and a run's the mean of the middle half of its windows:
nearly as sharp as the mean, and as little moved by a few odd windows as the median. The interval is
of that over windows drawn anew (bootstrap). Windows in which the base itself was far slower
than usual are left out for both.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from loadtest import stats
from loadtest.record import OK, Record

MARGINS = ((0.5, 0.03), (0.95, 0.05), (0.99, 0.10))
"""The greatest ratio that is no regression, for each percentile."""
METRICS = ("ttft", "gap_max", "e2e")
CONFIDENCE = 0.99
ABSOLUTE_MS = 0.2
LEAST_PER_WINDOW = 160
LEAST_WINDOWS = 10
NOISY = 3.0
"""A window whose base median is beyond so many times the usual one is left out."""
MOST_NOISY = 0.3
DELAYED = 0.03
INJECTED = 1.2
_REPLICATES = 1000

PASS, FAIL, INCONCLUSIVE = "pass", "fail", "inconclusive"
EXITS = {PASS: 0, FAIL: 1, INCONCLUSIVE: 2}

Window = tuple[list[float], list[float]]
"""Milliseconds of the base's answers and of the candidate's due in it, both in rising order."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One whole answer; `arm` 0 is the base, 1 the candidate. Times in milliseconds."""

    arm: int
    due_s: float
    ttft: float
    gap_max: float
    e2e: float


class Finding(Struct, kw_only=True):
    """One percentile of one metric: medians over windows, and the interval of the ratio."""

    metric: str
    quantile: float
    base_ms: float
    candidate_ms: float
    ratio: float
    low: float
    high: float
    margin: float
    regressed: bool


class Verdict(Struct, kw_only=True):
    word: str
    reasons: list[str]
    findings: list[Finding]
    windows: int
    left_out: int
    answers: list[int]
    failed: list[int]


def answers_of(records: Sequence[Record], begin_at: float) -> list[Answer]:
    """The whole answers that were due from `begin_at` on."""
    return [
        Answer(
            record.arm,
            record.due_at - begin_at,
            (record.first_at - record.due_at) * 1e3,
            record.gap_max * 1e3,
            (record.ended_at - record.due_at) * 1e3,
        )
        for record in records
        if record.outcome == OK and record.due_at >= begin_at and not record.slow
    ]


def judge(
    answers: Sequence[Answer], *, window_s: float, seed: int, failed: Sequence[int] = (0, 0)
) -> Verdict:
    """The verdict of one run, after it has found that it can tell: the base against itself must
    pass, and the base against itself with 3 % of its answers delayed must not."""
    windows = _windows(answers, window_s)
    kept = _quiet(windows)
    left_out = len(windows) - len(kept)
    counts = [sum(1 for each in answers if each.arm == arm) for arm in (0, 1)]
    verdict = Verdict(
        word=INCONCLUSIVE,
        reasons=[],
        findings=[],
        windows=len(kept),
        left_out=left_out,
        answers=counts,
        failed=list(failed),
    )
    verdict.reasons += _unable(windows, kept)
    if verdict.reasons:
        return verdict
    verdict.findings = list(_findings(kept, seed))
    verdict.reasons += _self_check(kept, seed)
    if verdict.reasons:
        return verdict
    regressed = [each for each in verdict.findings if each.regressed]
    verdict.word = FAIL if regressed or failed[1] > _allowed_failures(failed, counts) else PASS
    verdict.reasons += [
        f"{each.metric} p{each.quantile * 100:g} is {each.ratio:.3f} times the base's, at least "
        f"{each.low:.3f}, and {1 + each.margin:g} may be"
        for each in regressed
    ]
    if failed[1] > _allowed_failures(failed, counts):
        verdict.reasons.append(f"{failed[1]} requests failed, {failed[0]} of the base's did")
    return verdict


def _allowed_failures(failed: Sequence[int], counts: Sequence[int]) -> float:
    """As many as the base's and a thousandth more: single ones happen."""
    return failed[0] * 1.5 + max(counts[1] * 0.001, 1.0)


def _windows(answers: Sequence[Answer], window_s: float) -> list[tuple[list[Answer], list[Answer]]]:
    if not answers:
        return []
    found: dict[int, tuple[list[Answer], list[Answer]]] = {}
    for answer in answers:
        found.setdefault(int(answer.due_s / window_s), ([], []))[answer.arm].append(answer)
    return [found[number] for number in sorted(found)]


def _quiet(
    windows: Sequence[tuple[list[Answer], list[Answer]]],
) -> list[tuple[list[Answer], list[Answer]]]:
    """Those with enough answers, and in which the base was not far slower than usual."""
    full = [pair for pair in windows if min(map(len, pair)) >= LEAST_PER_WINDOW]
    if not full:
        return []
    medians = [_median([answer.ttft for answer in base]) for base, _ in full]
    usual = _median(medians)
    return [pair for pair, median in zip(full, medians, strict=True) if median <= NOISY * usual]


def _unable(windows: Sequence[object], kept: Sequence[object]) -> Iterator[str]:
    if len(kept) < LEAST_WINDOWS:
        yield (
            f"{len(kept)} windows have {LEAST_PER_WINDOW} answers of each and are quiet enough, "
            f"{LEAST_WINDOWS} are needed: run longer or faster"
        )
    elif len(kept) < (1 - MOST_NOISY) * len(windows):
        yield f"the machine is too noisy: {len(windows) - len(kept)} of {len(windows)} left out"


def _findings(windows: Sequence[tuple[list[Answer], list[Answer]]], seed: int) -> Iterator[Finding]:
    for metric in METRICS:
        values = [(_ordered(base, metric), _ordered(other, metric)) for base, other in windows]
        for quantile, margin in MARGINS:
            yield _finding(metric, values, quantile, margin, seed)


def _finding(
    metric: str, windows: Sequence[Window], quantile: float, margin: float, seed: int
) -> Finding:
    base = [stats.percentile(one, quantile) for one, _ in windows]
    other = [stats.percentile(two, quantile) for _, two in windows]
    logs = [_log_ratio(two, one) for one, two in zip(base, other, strict=True)]
    rng = random.Random(f"{seed}/{metric}/{quantile}")
    drawn = sorted(_midmean(rng.choices(logs, k=len(logs))) for _ in range(_REPLICATES))
    low, high = stats.percentile(drawn, 1 - CONFIDENCE), stats.percentile(drawn, CONFIDENCE)
    changes = [two - one for one, two in zip(base, other, strict=True)]
    return Finding(
        metric=metric,
        quantile=quantile,
        base_ms=_median(base),
        candidate_ms=_median(other),
        ratio=math.exp(_midmean(logs)),
        low=math.exp(low),
        high=math.exp(high),
        margin=margin,
        regressed=low > math.log1p(margin) and _median(changes) > ABSOLUTE_MS,
    )


def _ordered(answers: Sequence[Answer], metric: str) -> list[float]:
    return sorted([getattr(answer, metric) for answer in answers])


def _median(values: Sequence[float]) -> float:
    """As `statistics.median`, which takes several times as long."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _midmean(values: Sequence[float]) -> float:
    ordered = sorted(values)
    cut = len(ordered) // 4
    middle = ordered[cut : len(ordered) - cut]
    return sum(middle) / len(middle)


def _log_ratio(other: float, base: float) -> float:
    return math.log(max(other, 1e-6) / max(base, 1e-6))


def _self_check(windows: Sequence[tuple[list[Answer], list[Answer]]], seed: int) -> Iterator[str]:
    """Can these windows tell? Two arms are drawn from the base's answers, as large as it is: they
    must be alike, and where one of them has a fifth more in its tail they must not."""
    rng = random.Random(f"{seed}/self")
    equal: list[Window] = []
    delayed: list[Window] = []
    for base, _ in windows:
        values = [answer.ttft for answer in base]
        one, two = (rng.choices(values, k=len(values)) for _ in range(2))
        equal.append((sorted(one), sorted(two)))
        delayed.append((sorted(one), sorted(with_delays(two, rng))))
    quantile, margin = MARGINS[-1]
    if _finding("ttft", equal, quantile, margin, seed).regressed:
        yield "the base differs from itself: the machine is too noisy"
    elif not _finding("ttft", delayed, quantile, margin, seed).regressed:
        yield "a p99 that is a fifth longer would not be found: run longer or faster"


def with_delays(values: Sequence[float], rng: random.Random) -> list[float]:
    """Of these times, 3 % longer: by as much as makes a fifth of the 99th percentile."""
    tail = stats.percentile(sorted(values), 0.99)
    extra = max(INJECTED * tail - _median(values), ABSOLUTE_MS * 2)
    late = set(rng.sample(range(len(values)), k=max(1, round(len(values) * DELAYED))))
    return [value + extra if place in late else value for place, value in enumerate(values)]


def together(first: Verdict, second: Verdict) -> Verdict:
    """Of two runs: a regression is one that both found."""
    if second.word == FAIL and first.word == FAIL:
        names = {(each.metric, each.quantile) for each in first.findings if each.regressed}
        again = [
            each
            for each in second.findings
            if each.regressed and (each.metric, each.quantile) in names
        ]
        if again or not names:
            return second
    if second.word == INCONCLUSIVE:
        return second
    second.word = PASS
    second.reasons = ["what the first run found did not happen again"]
    return second


def render(verdict: Verdict) -> Iterator[str]:
    """A table and the verdict."""
    yield (
        f"{'ms':8} {'':5} {'base':>9} {'candidate':>9} {'ratio':>7}  "
        f"{'98 % interval':>15}  {'allowed':>7}"
    )
    for each in verdict.findings:
        word = "REGRESSED" if each.regressed else ""
        yield (
            f"{each.metric:8} p{each.quantile * 100:<4g} {each.base_ms:9.2f} "
            f"{each.candidate_ms:9.2f} {each.ratio:7.3f}  [{each.low:.3f}, {each.high:.3f}]  "
            f"{1 + each.margin:7.2f}  {word}".rstrip()
        )
    yield (
        f"{verdict.windows} windows, {verdict.left_out} left out; "
        f"answers {verdict.answers[0]} and {verdict.answers[1]}, "
        f"failed {verdict.failed[0]} and {verdict.failed[1]}"
    )
    for reason in verdict.reasons:
        yield f"- {reason}"
    yield verdict.word.upper()


def document(verdict: Verdict, about: dict[str, Any]) -> dict[str, Any]:
    """For `gate.json`."""
    return {"verdict": verdict, "about": about}
