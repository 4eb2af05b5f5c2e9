"""Charts as SVG text, for a page that needs nothing else. Decides.

Colours are classes of the page: `a`, `b` and `c` for series, `grid`, `mark`.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDTH = 760
_LEAST = 1e-3  # a logarithmic scale begins here at the lowest
_LEFT, _NARROW, _RIGHT, _TOP, _BOTTOM = 150, 64, 24, 12, 30


@dataclass(frozen=True, slots=True)
class Line:
    """One series; None leaves a gap."""

    name: str
    kind: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Span:
    """A value and its interval, in one row."""

    name: str
    low: float
    value: float
    high: float


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of a waterfall."""

    name: str
    kind: str
    begin: float
    length: float
    said: str


def short(value: float) -> str:
    """At most three digits that count: 0.05, 1.2, 150, 20k."""
    if value >= 10_000:
        return f"{value / 1000:.3g}k"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _svg(height: float, label: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{html.escape(label)}">'
        f"{''.join(parts)}</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _rule(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, ..."""
    if value <= 0:
        return 1.0
    value = max(value, 1e-9)  # below that nothing is drawn, and powers of ten run out
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))


def lines(
    label: str,
    unit: str,
    series: Sequence[Line],
    marks: Sequence[tuple[float, str]] = (),
    *,
    from_zero: bool = True,
) -> str:
    """Values per second of the run. `marks`: seconds at which something happened, and what."""
    height = 180
    count = max((len(line.values) for line in series), default=0)
    known = [value for line in series for value in line.values if value is not None]
    floor_value, top = 0.0, round_up(max(known, default=0))
    if not from_zero and known and min(known) > 0.5 * max(known):
        floor_value, top = _around(min(known), max(known))
    right, floor = WIDTH - _RIGHT, height - _BOTTOM

    def x(index: float) -> float:
        return _NARROW + (right - _NARROW) * index / max(count - 1, 1)

    def y(value: float) -> float:
        return floor - (floor - _TOP) * (value - floor_value) / (top - floor_value)

    levels = [floor_value + (top - floor_value) * n / 2 for n in range(3)]
    parts = [_rule(_NARROW, y(level), right, y(level), "grid") for level in levels]
    parts += [_text(_NARROW - 8, y(level) + 4, short(level), "end") for level in levels]
    parts.append(_text(8, height - 12, unit, "start"))
    step = max(1, round(round_up(count / 8)))
    parts += [_text(x(n), height - 12, f"{n} s") for n in range(0, count, step)]
    for at, name in marks:
        place = x(min(max(at, 0), max(count - 1, 0)))
        parts.append(_rule(place, _TOP, place, floor, "mark"))
        anchor = "end" if place > WIDTH - 160 else "start"
        parts.append(_text(place + (-4 if anchor == "end" else 4), _TOP + 10, name, anchor))
    parts += [_path(line, x, y) for line in series]
    return _svg(height, label, parts)


def _around(low: float, high: float) -> tuple[float, float]:
    """Round bounds of what hardly changes: a line at the top tells nothing."""
    step = round_up(max(high - low, high * 0.02))
    return math.floor(low / step) * step, math.floor(high / step) * step + step


def waterfall(label: str, unit: str, rows: Sequence[Bar]) -> str:
    """Bars one after the other, on one scale from 0 on."""
    height = _TOP + 24 * len(rows) + _BOTTOM
    top = max((row.begin + row.length for row in rows), default=0) or 1.0
    right, floor = WIDTH - 150, height - _BOTTOM

    def x(value: float) -> float:
        return _LEFT + (right - _LEFT) * value / top

    parts, step = [], round_up(top / 5)
    for n in range(int(top / step) + 1):
        parts.append(_rule(x(n * step), _TOP, x(n * step), floor, "grid"))
        parts.append(_text(x(n * step), height - 12, f"{short(n * step)} {unit}"))
    for number, row in enumerate(rows):
        y = _TOP + 24 * number + 4
        wide = max(x(row.length) - _LEFT, 1.5)
        parts.append(
            f'<rect class="fill {row.kind}" x="{x(row.begin):.1f}" y="{y}" width="{wide:.1f}" '
            f'height="15" rx="2"><title>{html.escape(f"{row.name}: {row.said}")}</title></rect>'
        )
        parts.append(_text(_LEFT - 8, y + 12, row.name, "end"))
        parts.append(_text(x(row.begin) + wide + 6, y + 12, row.said, "start"))
    return _svg(height, label, parts)


def _path(line: Line, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    points, pen = [], "M"
    for index, value in enumerate(line.values):
        if value is None:
            pen = "M"
            continue
        points.append(f"{pen}{x(index):.1f} {y(value):.1f}")
        pen = "L"
    return f'<path class="line {line.kind}" d="{" ".join(points)}"/>'


def spans(label: str, unit: str, rows: Sequence[Span]) -> str:
    """Values with their intervals on a logarithmic scale."""
    height = _TOP + 22 * len(rows) + _BOTTOM
    least = max(min((row.low for row in rows), default=1.0), _LEAST)
    most = max((row.high for row in rows), default=10.0)
    first = math.floor(math.log10(least))
    last = max(math.ceil(math.log10(max(most, least))), first + 1)
    right, floor = WIDTH - _RIGHT, height - _BOTTOM

    def x(value: float) -> float:
        at = math.log10(max(value, 10.0**first))
        return _LEFT + (right - _LEFT) * (at - first) / (last - first)

    parts = []
    for power in range(first, last + 1):
        at = x(10.0**power)
        parts.append(_rule(at, _TOP, at, floor, "grid"))
        parts.append(_text(at, height - 12, f"{short(10.0**power)} {unit}"))
    for number, row in enumerate(rows):
        y = _TOP + 22 * number + 11
        said = f"{row.name}: {short(row.value)} [{short(row.low)} {short(row.high)}] {unit}"
        parts.append(
            f"<g><title>{html.escape(said)}</title>{_rule(x(row.low), y, x(row.high), y, 'span')}"
            f'<circle class="fill a" cx="{x(row.value):.1f}" cy="{y}" r="4"/></g>'
        )
        parts.append(_text(_LEFT - 8, y + 4, row.name, "end"))
    return _svg(height, label, parts)


def bars(label: str, unit: str, counts: Sequence[int], low: float, per_decade: int) -> str:
    """A histogram on a logarithmic scale; empty ends are left out."""
    filled = [index for index, count in enumerate(counts) if count]
    if not filled:
        return _svg(40, label, [_text(WIDTH / 2, 24, "none")])
    first = filled[0] // per_decade * per_decade
    last = min(len(counts), (filled[-1] // per_decade + 1) * per_decade)
    height, top = 190, max(counts)
    floor, wide = height - _BOTTOM, (WIDTH - _RIGHT - _LEFT) / (last - first)
    parts = [
        _text(_LEFT - 8, _TOP + 8, short(top), "end"),
        _rule(_LEFT, floor, WIDTH, floor, "grid"),
    ]
    for index in range(first, last):
        left, begin = _LEFT + wide * (index - first), low * 10 ** (index / per_decade)
        tall = (floor - _TOP) * counts[index] / top
        if counts[index]:
            end = begin * 10 ** (1 / per_decade)
            said = f"{short(begin)} to {short(end)} {unit}: {counts[index]}"
            parts.append(
                f'<rect class="fill a" x="{left:.1f}" y="{floor - max(tall, 1):.1f}" '
                f'width="{max(wide - 1, 1):.1f}" height="{max(tall, 1):.1f}">'
                f"<title>{html.escape(said)}</title></rect>"
            )
        if (index - first) % per_decade == 0:
            parts.append(_text(left, height - 12, f"{short(begin)} {unit}", "start"))
    return _svg(height, label, parts)
