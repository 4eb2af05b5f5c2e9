"""The parts of a result's page that tell of the server: phases, replicas, processes. Decides."""

from __future__ import annotations

import html
from collections.abc import Sequence

from loadtest import charts, table
from loadtest.result import Result, Series

_KINDS = ("a", "b", "c")
_MIB = 1 << 20


def figure(title: str, svg: str, drawn: Sequence[charts.Line] = ()) -> str:
    """`drawn`: the lines in it, for the key."""
    keys = "".join(
        f'<span class="key {line.kind}">{html.escape(line.name)}</span>' for line in drawn
    )
    caption = f"<figcaption>{html.escape(title)}{keys}</figcaption>"
    return f'<figure>{caption}<div class="wide">{svg}</div></figure>'


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["".join(f"<th>{html.escape(cell)}</th>" for cell in head)]
    lines += ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table>{body}</table></div>'


def phases(result: Result) -> list[str]:
    """A mean first token, from its due time on: the client's part, then the server's phases as
    `Server-Timing` has them, then what is left. Nothing without any."""
    ttft, sent = result.metric("ttft"), result.metric("ttft from send")
    if not result.phases or ttft is None or sent is None:
        return []
    waited = max(ttft.mean - sent.mean, 0.0)
    rows = [charts.Bar("before it was sent", "b", 0.0, waited, f"{table.number(waited)} ms")]
    at = waited
    for phase in result.phases:
        said = f"{table.number(phase.mean)} ms, p95 {table.number(phase.p95)}"
        rows.append(charts.Bar(phase.name, "a", at, phase.mean, said))
        at += phase.mean
    left = ttft.mean - at
    if left > 0:
        rows.append(charts.Bar("network and all else", "c", at, left, f"{table.number(left)} ms"))
    count = max(phase.count for phase in result.phases)
    table_rows = [
        [each.name, *(table.number(v) for v in (each.mean, each.p50, each.p95, each.p99))]
        for each in result.phases
    ]
    return [
        "<h2>Where the time to the first token went</h2>",
        figure(
            f"Means of {count} answers, phase after phase",
            charts.waterfall("phases of the time to first token", "ms", rows),
        ),
        grid(["ms", "mean", "p50", "p95", "p99"], table_rows),
        '<p class="soft">The server\'s phases are its own word (Server-Timing). Percentiles of '
        "phases do not add up.</p>",
    ]


def replicas(result: Result) -> list[str]:
    if not result.shares:
        return []
    rows = []
    for each in result.shares:
        hit = each.cached_tokens / each.prompt_tokens if each.prompt_tokens else 0.0
        counts = (each.requests, each.prompt_tokens, each.cached_tokens, each.output_tokens)
        rows.append([each.replica, *(f"{count:.0f}" for count in counts), f"{hit:.1%}"])
    said = result.rates.get("balance")
    return [
        "<h2>Replicas</h2>",
        grid(["", "requests", "prompt tokens", "of them cached", "tokens", "hit"], rows),
        *([] if said is None else [f"<p>The busiest did {said:.2f} times the mean.</p>"]),
        '<p class="soft">By their own metrics, warm-up included. Work is new tokens of prompts and '
        "tokens of answers.</p>",
    ]


_TITLES = (("rss", "Memory (RSS)", "MiB"), ("cpu", "CPU", "%"), ("descriptors", "Descriptors", ""))


def processes(result: Result) -> list[str]:
    """What each process of the server used, and the metrics that were looked at."""
    if not result.series:
        return []
    marks = [(each.at_s, each.name) for each in result.happened]
    parts = ["<h2>The server's processes</h2>"]
    count = len(result.seconds)
    for what, title, unit in _TITLES:
        found = [each for each in result.series if each.what == what]
        drawn = [
            charts.Line(each.of, _KINDS[n % 3], per_second(each, count))
            for n, each in enumerate(found)
        ]
        if drawn:
            svg = charts.lines(f"{title} over time", unit, drawn, marks, from_zero=what != "rss")
            parts.append(figure(title, svg, drawn))
    for each in result.series:
        if each.of == "metrics":
            drawn = [charts.Line(each.what, "a", per_second(each, count))]
            svg = charts.lines(f"{each.what} over time", each.unit, drawn, marks)
            parts.append(figure(each.what, svg))
    return parts


def per_second(series: Series, count: int) -> list[float | None]:
    """The last value of each second of the run, or of the one before it; bytes in MiB, and of a
    CPU clock how much of the time since the value before it was used, in percent."""
    values: list[float | None] = [None] * count
    before: tuple[float, float] | None = None
    for at, value in zip(series.at_s, series.values, strict=True):
        shown: float | None = value / _MIB if series.unit == "bytes" else value
        if series.what == "cpu":
            passed = at - before[0] if before is not None else 0.0
            used = value - before[1] if before is not None else 0.0
            shown = max(100 * used / passed, 0.0) if passed > 0 else None
            before = at, value
        if 0 <= at < count:
            values[int(at)] = shown
    return [
        values[n - 1] if each is None and n and n < count - 1 and values[n + 1] else each
        for n, each in enumerate(values)
    ]
