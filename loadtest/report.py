"""A result as one page: HTML with its charts inside, nothing is fetched. Decides."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence

from loadtest import charts, report_server, table
from loadtest.compare import Comparison
from loadtest.compare import rows as comparison_rows
from loadtest.report_style import STYLE
from loadtest.result import Metric, Percentile, Result

_SHOWN = ("ttft", "e2e", "tpot", "itl")


def render(result: Result, against: Sequence[tuple[str, Comparison]] = ()) -> str:
    """The whole page. `against`: other runs by name, each compared with this one as B."""
    scenario = result.about.get("scenario", {})
    title = f"Load test: {scenario.get('name', '')}"
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="soft">{html.escape(scenario.get("description", ""))}</p>',
        _verdict(result),
        _tiles(result),
        "<h2>What came</h2>",
        *(f"<p>{html.escape(line)}</p>" for line in table.what_came(result)),
        "<h2>Latency of whole answers, in ms</h2>",
        _metrics(result.metrics),
        '<p class="soft">[ ] is the 95 % interval: a bootstrap over 20 windows of the run. '
        "(&lt; n): a percentile so far out needs n samples.</p>",
        figure(
            "Percentiles with their intervals",
            charts.spans("percentiles with intervals", "ms", _spans(result.metrics)),
        ),
        *(f"<h2>{html.escape(name)}</h2>\n{_compared(found)}" for name, found in against),
        *report_server.phases(result),
        "<h2>Over time</h2>",
        *_over_time(result),
        *report_server.replicas(result),
        *report_server.processes(result),
        "<h2>Gaps between pieces of content</h2>",
        figure(
            "How many gaps were how long",
            charts.bars(
                "histogram of gaps",
                result.gaps.unit,
                result.gaps.counts,
                result.gaps.low,
                result.gaps.per_decade,
            ),
        ),
        *(_kind(kind, metrics) for kind, metrics in result.by_kind.items()),
        "<h2>Formulas</h2>",
        _pairs((metric.name, metric.formula) for metric in result.metrics),
        *_repeat(result),
    ]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}'
        '</title><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


figure = report_server.figure


def _verdict(result: Result) -> str:
    verdict = result.verdict
    kind, word = ("good", "VALID") if verdict.valid else ("bad", "INVALID")
    lines = [f'<p><span class="verdict {kind}">{word}</span></p>']
    lines += [f"<p>{html.escape(reason)}</p>" for reason in verdict.reasons]
    notes = list(verdict.notes)
    if result.interrupted:
        notes.append(f"interrupted; the figures are of the first {result.measured_s:.1f} s")
    lines += [f'<p class="soft">{html.escape(note)}</p>' for note in notes]
    return "\n".join(lines)


def _tiles(result: Result) -> str:
    """What one looks for first."""
    rates, counts = result.rates, result.counts
    tiles = [
        (f"{name} {_called(each)}", f"{table.number(each.value)} ms")
        for name, quantiles in (("ttft", (0.5, 0.95, 0.99)), ("tpot", (0.5,)))
        if (metric := result.metric(name)) is not None
        for each in metric.percentiles
        if each.quantile in quantiles and each.value is not None
    ]
    if rates:
        ended = counts.ok + counts.slow + counts.left + counts.failed
        tiles += [
            ("answers a second", table.number(rates["answers_per_s"])),
            ("tokens a second", f"{rates['output_tokens_per_s']:.0f}"),
            ("failed", f"{counts.failed / ended:.2%}" if ended else "-"),
            ("prompt tokens cached", f"{rates['cached_share']:.1%}"),
        ]
    if "balance" in rates:
        tiles.append(("busiest replica / mean", f"{rates['balance']:.2f}"))
    if "server_cpu_us_per_token" in rates:
        tiles.append(("server's CPU per token", f"{rates['server_cpu_us_per_token']:.1f} us"))
    cells = (
        f'<div class="tile">{html.escape(name)}<strong>{value}</strong></div>'
        for name, value in tiles
    )
    return f'<div class="tiles">{"".join(cells)}</div>'


def _called(each: Percentile) -> str:
    return f"p{each.quantile * 100:g}"


def _metrics(metrics: Sequence[Metric]) -> str:
    """As `table.metric_rows`, with each interval below its value, so that it fits a phone."""
    if not metrics:
        return "<p>No answer was measured.</p>"
    names = [_called(each) for each in metrics[0].percentiles]
    head = "".join(f"<th>{name}</th>" for name in ["", "count", "mean", *names, "greatest"])
    rows = []
    for metric in metrics:
        cells = [metric.name, str(metric.count), table.number(metric.mean)]
        shown = [f"<td>{html.escape(cell)}</td>" for cell in cells]
        for each in metric.percentiles:
            value, _, interval = table.shown(each).partition(" [")
            below = f"<small>[{html.escape(interval)}</small>" if interval else ""
            shown.append(f"<td>{html.escape(value)}{below}</td>")
        shown.append(f"<td>{table.number(metric.greatest)}</td>")
        rows.append(f"<tr>{''.join(shown)}</tr>")
    body = "\n".join(rows)
    return f'<div class="wide"><table><tr>{head}</tr>\n{body}</table></div>'


def _kind(kind: str, metrics: Sequence[Metric]) -> str:
    return f"<h2>{html.escape(kind)}</h2>\n{_metrics(metrics)}"


def _compared(found: Comparison) -> str:
    rows = comparison_rows(found)
    lines = [report_server.grid(rows[0], rows[1:])]
    lines += [f'<p class="soft">{html.escape(note)}</p>' for note in found.notes]
    lines.append(f"<p>This run is {found.word}.</p>")
    return "\n".join(lines)


def _spans(metrics: Sequence[Metric]) -> list[charts.Span]:
    return [
        charts.Span(f"{metric.name} {_called(each)}", each.low, each.value, each.high)
        for metric in metrics
        if metric.name in _SHOWN
        for each in metric.percentiles
        if each.value is not None and each.low is not None and each.high is not None
    ]


def _over_time(result: Result) -> list[str]:
    seconds = result.seconds
    line = charts.Line
    marks = [(each.at_s, each.name) for each in result.happened]
    shown: list[tuple[str, str, list[charts.Line]]] = [
        (
            "Requests",
            "1/s",
            [
                line("begun", "a", [second.started for second in seconds]),
                line("due (sessions)", "b", [second.due for second in seconds]),
            ],
        ),
        (
            "Time to first token",
            "ms",
            [
                line("median", "a", [second.ttft_p50_ms for second in seconds]),
                line("greatest", "b", [second.ttft_max_ms for second in seconds]),
            ],
        ),
        ("Failures", "1/s", [line("failed", "b", [second.failed for second in seconds])]),
        ("Tokens", "1/s", [line("of answers that ended", "a", [s.tokens for s in seconds])]),
    ]
    return [
        figure(title, charts.lines(f"{title} over time", unit, drawn, marks), drawn)
        for title, unit, drawn in shown
    ]


def _repeat(result: Result) -> list[str]:
    """What a repetition needs: the command first, then all the rest."""
    about = dict(result.about)
    attached: dict[str, str] = about.pop("attached", {})
    parts = ["<h2>To repeat it</h2>", f"<pre>{html.escape(str(about.pop('command', '')))}</pre>"]
    facts = {key: value for key, value in about.items() if not isinstance(value, dict)}
    for name in ("machine", "versions"):
        facts.update(about.pop(name, {}))
    parts.append(_pairs((key, _said(value)) for key, value in facts.items()))
    for key, value in about.items():
        if isinstance(value, dict):
            text = json.dumps(value, indent=2, ensure_ascii=False)
            parts.append(_folded(key, text))
    parts += [_folded(name, text) for name, text in attached.items()]
    return parts


def _said(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _folded(name: str, text: str) -> str:
    return (
        f"<details><summary>{html.escape(name)}</summary><pre>{html.escape(text)}</pre></details>"
    )


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(text)}</td></tr>" for name, text in pairs
    )
    return f'<div class="wide"><table class="words">{rows}</table></div>'
