"""Two results beside each other: ratios with intervals, and a word for each. Decides.

The windows of each run are drawn anew by themselves, and the ratios of what comes out make the
interval. It holds what the two runs varied within themselves, and not what else changed between
them: runs at different times differ by more than it says.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from msgspec import Struct

from loadtest import stats, table
from loadtest.result import Result

CONFIDENCE = 0.99
ABSOLUTE_MS = 0.2
# By so much a percentile must have moved to count.
MARGINS = ((0.5, 0.03), (0.9, 0.05), (0.95, 0.05), (0.99, 0.10))
_PAIRS = 4000

SLOWER, FASTER, ALIKE, UNCLEAR, FEW = "slower", "faster", "alike", "unclear", "too few"


class Difference(Struct, kw_only=True):
    """`ratio`: B's percentile by A's. None, with the word "too few": refused."""

    metric: str
    quantile: float
    a: float | None
    b: float | None
    ratio: float | None
    low: float | None
    high: float | None
    word: str


class Comparison(Struct, kw_only=True):
    """`word` is that of the whole: slower, faster, alike or unclear."""

    word: str
    differences: list[Difference]
    notes: list[str]


def compare(a: Result, b: Result, seed: int = 1) -> Comparison:
    differences = []
    for name in ("ttft", "e2e", "tpot"):
        quantiles = [quantile for quantile, _ in MARGINS]
        of_a, of_b = _side(a, name, quantiles, seed), _side(b, name, quantiles, seed + 1)
        rng = random.Random(seed)
        for number, (quantile, margin) in enumerate(MARGINS):
            sides = of_a[number], of_b[number]
            differences.append(_difference(name, quantile, margin, sides, rng))
    return Comparison(
        word=_whole(a, b, [each.word for each in differences]),
        differences=differences,
        notes=_notes(a, b),
    )


class _Side(Struct):
    """One run's percentile and what it is in resampled runs; None: refused."""

    value: float | None
    drawn: list[float]


def _side(result: Result, name: str, quantiles: Sequence[float], seed: int) -> list[_Side]:
    rows = result.rows
    column: Sequence[float | None] = getattr(rows, f"{name}_ms")
    pairs = [(v, at) for v, at in zip(column, rows.due_s, strict=True) if v is not None]
    if not pairs:
        return [_Side(None, []) for _ in quantiles]
    values, due = [value for value, _ in pairs], [at for _, at in pairs]
    windows = stats.into_windows(values, due, min(rows.due_s), max(rows.due_s))
    ordered = sorted(values)
    drawn = stats.replicates(windows, quantiles, seed)
    return [
        _Side(stats.percentile(ordered, quantile), resampled)
        if len(values) >= stats.needed(quantile)
        else _Side(None, [])
        for quantile, resampled in zip(quantiles, drawn, strict=True)
    ]


def _difference(
    name: str, quantile: float, margin: float, sides: tuple[_Side, _Side], rng: random.Random
) -> Difference:
    a, b = sides
    made = Difference(
        metric=name,
        quantile=quantile,
        a=a.value,
        b=b.value,
        ratio=None,
        low=None,
        high=None,
        word=FEW,
    )
    if a.value is None or b.value is None:
        return made
    ones, others = rng.choices(a.drawn, k=_PAIRS), rng.choices(b.drawn, k=_PAIRS)
    ratios = sorted(_ratio(two, one) for one, two in zip(ones, others, strict=True))
    made.ratio = _ratio(b.value, a.value)
    made.low, made.high = stats.interval(ratios, CONFIDENCE)
    made.word = word_of(made.low, made.high, margin, b.value - a.value)
    return made


def _ratio(b: float, a: float) -> float:
    if a > 0:
        return b / a
    return 1.0 if b <= 0 else math.inf


def word_of(low: float, high: float, margin: float, change_ms: float) -> str:
    """What an interval of a ratio says, where `margin` is the least change that counts."""
    if low > 1 + margin:
        return SLOWER if change_ms > ABSOLUTE_MS else ALIKE
    if high < 1 / (1 + margin):
        return FASTER if change_ms < -ABSOLUTE_MS else ALIKE
    if 1 / (1 + margin) <= low and high <= 1 + margin:
        return ALIKE
    return UNCLEAR


def _whole(a: Result, b: Result, words: Sequence[str]) -> str:
    decided = [word for word in words if word != FEW]
    if not (a.verdict.valid and b.verdict.valid) or not decided:
        return UNCLEAR
    return next((word for word in (SLOWER, UNCLEAR, FASTER) if word in decided), ALIKE)


def _notes(a: Result, b: Result) -> list[str]:
    """Whatever makes the two less alike than a comparison needs."""
    notes = [
        f"{side} is {table.verdict_line(result)}"
        for side, result in (("A", a), ("B", b))
        if not result.verdict.valid
    ]
    same = (("scenario", "scenarios"), ("seed", "seeds"), ("versions", "versions of the client"))
    notes += [f"the {what} differ" for key, what in same if a.about.get(key) != b.about.get(key)]
    machines = [result.about.get("machine", {}).get("processor") for result in (a, b)]
    if machines[0] != machines[1]:
        notes.append("the machines differ")
    failed = [_failed_share(result) for result in (a, b)]
    if max(failed) > 0:
        notes.append(f"failed: A {failed[0]:.2%}, B {failed[1]:.2%}; they are in no latency")
    return notes


def _failed_share(result: Result) -> float:
    counts = result.counts
    ended = counts.ok + counts.slow + counts.left + counts.failed
    return counts.failed / ended if ended else 0.0


def rows(comparison: Comparison) -> list[list[str]]:
    """A table, its head first."""
    head = ["ms", "", "A", "B", "B / A", "99 % interval", ""]
    return [head, *(_row(each) for each in comparison.differences)]


def render(comparison: Comparison) -> str:
    lines = [*table.aligned(rows(comparison)), ""]
    lines += [f"note: {note}" for note in comparison.notes]
    lines.append(
        "note: runs at different times also differ by what else the machine did; "
        "repeat both, in turns"
    )
    lines.append(f"B is {comparison.word.upper()}")
    return "\n".join(lines)


def _row(each: Difference) -> list[str]:
    cells = [each.metric, f"p{each.quantile * 100:g}"]
    cells += ["-" if value is None else table.number(value) for value in (each.a, each.b)]
    if each.ratio is None or each.low is None or each.high is None:
        return [*cells, "-", "-", each.word]
    return [*cells, f"{each.ratio:.3f}", f"[{each.low:.3f} {each.high:.3f}]", each.word]
