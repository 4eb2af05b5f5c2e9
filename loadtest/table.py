"""A result as text for a terminal. Decides."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.result import Metric, Percentile, Result


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def number(value: float) -> str:
    """Three digits that count, never a power of ten."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def shown(percentile: Percentile) -> str:
    if percentile.value is None or percentile.low is None or percentile.high is None:
        return f"(< {percentile.needed})"
    return f"{number(percentile.value)} [{number(percentile.low)} {number(percentile.high)}]"


def metric_rows(metrics: Sequence[Metric]) -> list[list[str]]:
    if not metrics:
        return []
    names = [f"p{each.quantile * 100:g}" for each in metrics[0].percentiles]
    head = ["ms", "count", "mean", *names, "greatest"]
    return [head, *(_row(metric) for metric in metrics)]


def _row(metric: Metric) -> list[str]:
    cells = [shown(each) for each in metric.percentiles]
    mean, greatest = number(metric.mean), number(metric.greatest)
    return [metric.name, str(metric.count), mean, *cells, greatest]


def render(result: Result) -> str:
    """The whole result, the verdict last."""
    lines = [*what_came(result), ""]
    if result.metrics:
        lines += aligned(metric_rows(result.metrics))
        lines += ["[ ] 95 % interval; (< n) fewer samples than such a percentile needs"]
        lines += [f"  {metric.name}: {metric.formula}" for metric in result.metrics]
    for kind, metrics in result.by_kind.items():
        lines += ["", f"{kind}:", *aligned(metric_rows(metrics))]
    lines.append("")
    lines += [f"note: {note}" for note in result.verdict.notes]
    if result.interrupted:
        lines.append(f"note: interrupted; the figures are of the first {result.measured_s:.1f} s")
    lines.append(verdict_line(result))
    return "\n".join(lines)


def verdict_line(result: Result) -> str:
    if result.verdict.valid:
        return "VALID"
    return "INVALID: " + "; ".join(result.verdict.reasons)


def what_came(result: Result) -> list[str]:
    """Counts, rates and failures, a line each."""
    counts, rates = result.counts, result.rates
    parts = [f"{counts.ok} answers"]
    named = (
        ("read slowly", counts.slow),
        ("left by intent", counts.left),
        ("unfinished", counts.unfinished),
        ("failed", counts.failed),
        ("in the warm-up", counts.warm_up),
    )
    parts += [f"{count} {name}" for name, count in named if count]
    lines = [", ".join(parts) + f" in {result.measured_s:.1f} s"]
    if rates:
        lines.append(
            f"{rates['sessions_per_s']:.1f} sessions/s, {rates['answers_per_s']:.1f} answers/s, "
            f"{rates['output_tokens_per_s']:.0f} tokens/s; prompt tokens cached: "
            f"{rates['cached_share']:.1%}"
        )
        lines.append(
            f"client: {rates['client_cpu']:.0%} of a core used, {rates['client_starved']:.0%} of "
            f"the time waited for one; {counts.connections} connections opened, {counts.resumed} "
            f"TLS sessions resumed, {counts.reconnects} requests sent again as a kept connection "
            "had just been closed"
        )
    if "balance" in rates:
        lines.append(
            f"balance of {len(result.shares)} replicas: the busiest did {rates['balance']:.2f} "
            "times the mean (new tokens of prompts, and of answers)"
        )
    if "server_cpu_us_per_answer" in rates:
        per_token = rates.get("server_cpu_us_per_token", 0.0)
        lines.append(
            f"server's processes: {rates['server_cpu_us_per_answer']:.0f} us of CPU for each "
            f"answer, {per_token:.1f} us for each token of them"
        )
    for name, count in counts.errors.items():
        example = counts.examples.get(name, "")
        lines.append(f"  {count} x {name}{': ' + example if example else ''}")
    return lines
