"""One scenario at several rates: a row for each, and the highest that was still good. Decides."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest import table
from loadtest.result import Result

MOST_FAILED = 0.01


def rates_of(text: str) -> list[float]:
    """`10,20,40`, in rising order. ValueError."""
    rates = [float(part) for part in text.split(",")]
    if not all(0 < rate < float("inf") for rate in rates):
        raise ValueError("a rate is a number above 0")
    return sorted(set(rates))


def is_good(result: Result, ttft_p95_ms: float | None) -> bool:
    """VALID, at most 1 % failed, and the time to first token within its bound, if there is one."""
    counts = result.counts
    ended = counts.ok + counts.slow + counts.failed
    if not result.verdict.valid or counts.failed > MOST_FAILED * ended:
        return False
    if ttft_p95_ms is None:
        return True
    found = _percentile(result, "ttft", 0.95)
    return found is not None and found <= ttft_p95_ms


def _percentile(result: Result, name: str, quantile: float) -> float | None:
    metric = result.metric(name)
    if metric is None:
        return None
    return next((e.value for e in metric.percentiles if e.quantile == quantile), None)


def render(results: Sequence[tuple[float, Result]], ttft_p95_ms: float | None) -> str:
    head = ["rate", "answers/s", "tokens/s", "ttft p50", "p95", "p99", "tpot p50", "failed"]
    rows = [[*head, "client", ""], *(_row(rate, result) for rate, result in results)]
    good = [rate for rate, result in results if is_good(result, ttft_p95_ms)]
    bound = "" if ttft_p95_ms is None else f", ttft p95 at most {ttft_p95_ms:g} ms"
    said = f"{max(good):g} sessions/s" if good else "none"
    return "\n".join(
        [*table.aligned(rows), "", f"highest good rate (VALID, {_FEW}{bound}): {said}"]
    )


_FEW = f"at most {MOST_FAILED:.0%} failed"


def _row(rate: float, result: Result) -> list[str]:
    rates = result.rates
    wanted = (("ttft", 0.5), ("ttft", 0.95), ("ttft", 0.99), ("tpot", 0.5))
    values = [_percentile(result, name, quantile) for name, quantile in wanted]
    return [
        f"{rate:g}",
        f"{rates.get('answers_per_s', 0.0):.1f}",
        f"{rates.get('output_tokens_per_s', 0.0):.0f}",
        *("-" if value is None else table.number(value) for value in values),
        str(result.counts.failed),
        f"{rates.get('client_cpu', 0.0):.0%}",
        "VALID" if result.verdict.valid else "INVALID",
    ]
