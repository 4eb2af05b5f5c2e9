"""The outcome of a study as one HTML page that needs nothing else. Pure."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from routing.simulator.figures import QUANTILES
from routing.simulator.study import Row
from routing.simulator.table import cell, columns

_WIDTH = 860
_LEFT, _RIGHT = 260, 110
_ROW = 22
_COLOURS = (
    *("#1f6fb2", "#d1495b", "#2e8b57", "#8e6bbf", "#c98a1b", "#4aa3a2", "#7a7a7a"),
    *("#b55d2c", "#5b6abf", "#9a9a2e", "#c05a9a", "#3c7d5a", "#a0522d", "#444444"),
)
_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em;
  color: #222; background: #fff }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block;
  overflow-x: auto }
th, td { padding: .25em .7em; text-align: right; border-bottom: 1px solid #ddd;
  white-space: nowrap }
th:first-child, td:first-child { text-align: left }
svg { width: 100%; height: auto; margin: .3em 0 1.4em }
svg text { font: 12px system-ui, sans-serif; fill: #333 }
"""


def page(title: str, facts: Sequence[str], rows: Sequence[Row]) -> str:
    """The whole page; `facts` are sentences above the table."""
    shown = columns(rows)
    head = "".join(f"<th>{html.escape(column[1])}</th>" for column in shown)
    body = "".join(
        f"<tr><td>{html.escape(row.policy)}</td>"
        + "".join(f"<td>{html.escape(cell(row, column))}</td>" for column in shown)
        + "</tr>"
        for row in rows
    )
    charts = [
        _bars("Goodput, %", rows, "goodput", 100.0),
        _bars("Mean TTFT, s", rows, "ttft_mean", 1.0),
        _bars("p99 TTFT, s", rows, "ttft_p99", 1.0),
        _bars("Prompt tokens found cached, %", rows, "hit", 100.0),
        _curves(rows),
    ]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{html.escape(title)}</h1>"
        + "".join(f"<p>{html.escape(fact)}</p>" for fact in facts)
        + f"<table><tr><th>policy</th>{head}</tr>{body}</table>"
        + "".join(charts)
        + "</html>\n"
    )


def _bars(title: str, rows: Sequence[Row], name: str, factor: float) -> str:
    """A bar for each policy with its confidence interval."""
    top = max((row.figures[name].mean + row.figures[name].half for row in rows), default=0.0)
    scale = (_WIDTH - _LEFT - _RIGHT) / (top * factor or 1.0)
    parts = []
    for number, row in enumerate(rows):
        span = row.figures[name]
        mean, half = span.mean * factor, span.half * factor
        y = number * _ROW
        low, high = _LEFT + max(mean - half, 0.0) * scale, _LEFT + (mean + half) * scale
        parts.append(
            f'<text x="{_LEFT - 8}" y="{y + 15}" text-anchor="end">{html.escape(row.policy)}</text>'
            f'<rect x="{_LEFT}" y="{y + 4}" width="{mean * scale:.1f}" height="14" '
            f'fill="{_colour(number)}"/>'
            f'<path d="M{low:.1f} {y + 11}H{high:.1f}" stroke="#000" stroke-width="2"/>'
            f'<text x="{high + 6:.1f}" y="{y + 15}">{mean:.3g} ±{half:.2g}</text>'
        )
    return _figure(title, len(rows) * _ROW + 6, parts)


def _curves(rows: Sequence[Row]) -> str:
    """TTFT by quantile, on logarithmic scales: seconds, and the share that waits longer."""
    floor, left, top = 300, 60, 10
    values = [value for row in rows for value in row.ttft if value > 0]
    if not values:
        return ""
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    last = max(last, first + 1)
    right = _WIDTH - 210

    def x(value: float) -> float:
        at = math.log10(max(value, 10.0**first))
        return left + (right - left) * (at - first) / (last - first)

    def y(share: float) -> float:
        return top + (floor - top) * -math.log10(1.0 - share) / 3

    parts = []
    for power in range(first, last + 1):
        at = x(10.0**power)
        parts.append(f'<path d="M{at:.1f} {top}V{floor}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{at:.1f}" y="{floor + 16}" text-anchor="middle">{10.0**power:g} s</text>'
        )
    for share, name in ((0.0, "all"), (0.9, "10 %"), (0.99, "1 %"), (0.999, "0.1 %")):
        parts.append(f'<path d="M{left} {y(share):.1f}H{right}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y(share) + 4:.1f}" text-anchor="end">{name}</text>')
    for number, row in enumerate(rows):
        points = "L".join(
            f"{x(value):.1f} {y(share):.1f}"
            for value, share in zip(row.ttft, QUANTILES, strict=True)
        )
        colour = _colour(number)
        parts.append(f'<path d="M{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        at = top + 4 + number * 18
        parts.append(f'<rect x="{right + 14}" y="{at}" width="12" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{right + 32}" y="{at + 10}">{html.escape(row.policy)}</text>')
    height = max(floor + 24, top + 18 * len(rows) + 10)
    return _figure("How many wait longer than so long for the first token", height, parts)


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _figure(title: str, height: float, parts: Sequence[str]) -> str:
    said = html.escape(title)
    return (
        f'<h2>{said}</h2><svg viewBox="0 0 {_WIDTH} {height:g}" role="img" aria-label="{said}">'
        f"{''.join(parts)}</svg>"
    )
