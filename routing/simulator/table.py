"""The outcome of a study as text and as plain values for JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from routing.simulator.figures import Span
from routing.simulator.study import Row

COLUMNS: tuple[tuple[str, str, float, int], ...] = (
    ("hit", "hit %", 100.0, 1),
    ("ttft_mean", "TTFT mean s", 1.0, 3),
    ("ttft_p50", "p50 s", 1.0, 2),
    ("ttft_p99", "p99 s", 1.0, 2),
    ("tpot_p50", "TPOT p50 ms", 1e3, 1),
    ("tpot_p99", "p99 ms", 1e3, 0),
    ("goodput", "goodput %", 100.0, 1),
    ("balance", "max/mean", 1.0, 2),
    ("regret", "regret %", 100.0, 1),
    ("shed", "shed %", 100.0, 1),
    ("shed_4k", "<=4k", 100.0, 1),
    ("shed_32k", "<=32k", 100.0, 1),
    ("shed_more", ">32k", 100.0, 1),
    ("failed", "failed %", 100.0, 2),
)
"""The figure, its title, what it is multiplied by, its digits."""
_ALWAYS = 8


def columns(rows: Sequence[Row]) -> list[tuple[str, str, float, int]]:
    """Those worth showing: later ones only if anything is in them."""
    return [
        column
        for number, column in enumerate(COLUMNS)
        if number < _ALWAYS or any(_mean(row, column[0]) for row in rows)
    ]


def cell(row: Row, column: tuple[str, str, float, int]) -> str:
    """A mean with its interval."""
    name, _, factor, digits = column
    span = row.figures.get(name)
    if span is None:
        return "-"
    text = f"{span.mean * factor:.{digits}f}"
    return f"{text}±{span.half * factor:.{digits}f}" if span.half else text


def table(rows: Sequence[Row]) -> str:
    """Lines of aligned columns."""
    shown = columns(rows)
    lines = [["policy", *(column[1] for column in shown)]]
    lines += [[row.policy, *(cell(row, column) for column in shown)] for row in rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    return "".join(
        "  ".join(
            text.ljust(width) if at == 0 else text.rjust(width)
            for at, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        + "\n"
        for line in lines
    )


def document(rows: Sequence[Row]) -> list[dict[str, object]]:
    """For JSON: each figure's mean and the half width of its 95 % interval."""
    return [
        {"policy": row.policy, **{name: _pair(span) for name, span in row.figures.items()}}
        for row in rows
    ]


def _pair(span: Span) -> Mapping[str, float]:
    return {"mean": span.mean, "ci95": span.half}


def _mean(row: Row, name: str) -> float:
    span = row.figures.get(name)
    return span.mean if span is not None else 0.0
