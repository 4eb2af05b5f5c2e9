"""A result as one page: HTML with its charts inside, nothing is fetched. Decides."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence

from loadtest import charts, table
from loadtest.result import Metric, Result

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1f24; --soft: #667; --rule: #ddd;
  --a: #0b63ce; --b: #c2410c; --good: #177a3a; --bad: #b42318; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --ink: #e6e8ea; --soft: #9aa3ad;
  --rule: #33393f; --a: #6cb1ff; --b: #ff9d66; --good: #5fd08a; --bad: #ff8a80; } }
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif;
  max-width: 1000px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--rule); text-align: right;
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.soft { color: var(--soft); } .good { color: var(--good); } .bad { color: var(--bad); }
pre { overflow-x: auto; font-size: 12px; }
svg { width: 100%; height: auto; font: 11px system-ui, sans-serif; }
svg text { fill: var(--soft); }
.grid { stroke: var(--rule); } .span { stroke: var(--a); stroke-width: 3; opacity: .45; }
.line { fill: none; stroke-width: 1.6; }
.line.a { stroke: var(--a); } .line.b { stroke: var(--b); }
.fill.a { fill: var(--a); } .fill.b { fill: var(--b); }
"""

_SHOWN = ("ttft", "e2e", "tpot", "itl")


def render(result: Result) -> str:
    """The whole page."""
    scenario = result.about.get("scenario", {})
    title = f"Load test: {scenario.get('name', '')}"
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="soft">{html.escape(scenario.get("description", ""))}</p>',
        _verdict(result),
        "<h2>What came</h2>",
        _what_came(result),
        "<h2>Latency of whole answers, in ms</h2>",
        _metrics(result.metrics),
        '<p class="soft">[ ] is the 95 % interval: a bootstrap over 20 windows of the run. '
        "(&lt; n): a percentile so far out needs n samples.</p>",
        charts.spans("percentiles with intervals", "ms", _spans(result.metrics)),
        *(_kind(kind, metrics) for kind, metrics in result.by_kind.items()),
        "<h2>Over time</h2>",
        *_over_time(result),
        "<h2>Gaps between pieces of content</h2>",
        charts.bars(
            "histogram of gaps",
            result.gaps.unit,
            result.gaps.counts,
            result.gaps.low,
            result.gaps.per_decade,
        ),
        "<h2>Formulas</h2>",
        _pairs((metric.name, metric.formula) for metric in result.metrics),
        "<h2>To repeat it</h2>",
        f"<pre>{html.escape(json.dumps(result.about, indent=2, ensure_ascii=False))}</pre>",
    ]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}'
        '</title><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _verdict(result: Result) -> str:
    kind = "good" if result.verdict.valid else "bad"
    lines = [f'<p class="{kind}"><strong>{html.escape(table.verdict_line(result))}</strong></p>']
    notes = list(result.verdict.notes)
    if result.interrupted:
        notes.append(f"interrupted; the figures are of the first {result.measured_s:.1f} s")
    lines += [f'<p class="soft">{html.escape(note)}</p>' for note in notes]
    return "\n".join(lines)


def _what_came(result: Result) -> str:
    return "\n".join(f"<p>{html.escape(line)}</p>" for line in table.what_came(result))


def _metrics(metrics: Sequence[Metric]) -> str:
    rows = table.metric_rows(metrics)
    if not rows:
        return "<p>No answer was measured.</p>"
    cells = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows[1:]]
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in rows[0])
    body = "\n".join(f"<tr>{row}</tr>" for row in cells)
    return f'<div class="wide"><table><tr>{head}</tr>\n{body}</table></div>'


def _kind(kind: str, metrics: Sequence[Metric]) -> str:
    return f"<h2>{html.escape(kind)}</h2>\n{_metrics(metrics)}"


def _spans(metrics: Sequence[Metric]) -> list[charts.Span]:
    return [
        charts.Span(f"{metric.name} p{each.quantile * 100:g}", each.low, each.value, each.high)
        for metric in metrics
        if metric.name in _SHOWN
        for each in metric.percentiles
        if each.value is not None and each.low is not None and each.high is not None
    ]


def _over_time(result: Result) -> list[str]:
    seconds = result.seconds
    line = charts.Line
    rate = [
        line("begun", "a", [second.started for second in seconds]),
        line("due (sessions)", "b", [second.due for second in seconds]),
    ]
    ttft = [
        line("TTFT, median", "a", [second.ttft_p50_ms for second in seconds]),
        line("TTFT, greatest", "b", [second.ttft_max_ms for second in seconds]),
    ]
    failed = [line("failed", "b", [second.failed for second in seconds])]
    tokens = [line("tokens of ended", "a", [second.tokens for second in seconds])]
    return [
        charts.lines("requests over time", "1/s", rate),
        charts.lines("time to first token over time", "ms", ttft),
        charts.lines("failures over time", "1/s", failed),
        charts.lines("tokens over time", "1/s", tokens),
    ]


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(text)}</td></tr>" for name, text in pairs
    )
    return f'<div class="wide"><table>{rows}</table></div>'
