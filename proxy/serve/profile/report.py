"""What the profiler measured, as a waterfall and a verdict for each tier. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from proxy.budgets.config import BudgetsConfig, TierConfig
from proxy.phases import OWN

FIRST_TOKENS = 10
_WIDTH = 44


@dataclass(slots=True)
class Sample:
    """One request; seconds. What belongs to a connection that was used again is None.
    `server` is the answer's `Server-Timing`. `gaps`: between one token and the next."""

    resolve: float | None = None
    connect: float | None = None
    tls: float | None = None
    resumed: bool = False
    upload: float = 0.0
    first_byte: float = 0.0
    first_token: float = 0.0
    first_tokens: float = 0.0
    gaps: list[float] = field(default_factory=list)
    total: float = 0.0
    server: Mapping[str, float] = field(default_factory=dict)


def parse_server_timing(value: str) -> dict[str, float]:
    """Seconds by name, of a `Server-Timing` header (W3C); entries without a duration are left
    out."""
    found = {}
    for entry in value.split(","):
        name, *parameters = [part.strip() for part in entry.split(";")]
        for parameter in parameters:
            key, _, text = parameter.partition("=")
            if key.strip().lower() == "dur":
                try:
                    found[name] = float(text.strip().strip('"')) / 1e3
                except ValueError:
                    break
    return found


def render(samples: Sequence[Sample], config: BudgetsConfig) -> Iterator[str]:
    """Lines. `samples` is not empty."""
    stages = list(_stages(samples))
    longest = max(seconds for _, seconds, _ in stages)
    for name, seconds, spread in stages:
        bar = "#" * max(1, round(seconds / longest * _WIDTH)) if longest else ""
        yield f"{name:18} {seconds * 1e3:9.2f} ms  {spread:>19}  {bar}".rstrip()
    server = _server(samples)
    if server:
        yield ""
        yield "Inside the time to first byte, as the server says:"
        for name, seconds in server.items():
            yield f"  {name:16} {seconds * 1e3:9.2f} ms"
    yield ""
    yield from _verdicts(samples, server, config)


def _stages(samples: Sequence[Sample]) -> Iterator[tuple[str, float, str]]:
    columns: list[tuple[str, list[float]]] = [
        ("resolve", [s.resolve for s in samples if s.resolve is not None]),
        ("connect", [s.connect for s in samples if s.connect is not None]),
        ("TLS, full", [s.tls for s in samples if s.tls is not None and not s.resumed]),
        ("TLS, resumed", [s.tls for s in samples if s.tls is not None and s.resumed]),
        ("upload", [s.upload for s in samples]),
        ("first byte", [s.first_byte for s in samples]),
        ("first token", [s.first_token for s in samples]),
        (f"first {FIRST_TOKENS} tokens", [s.first_tokens for s in samples]),
        ("per token", [gap for s in samples for gap in s.gaps]),
        ("whole answer", [s.total for s in samples]),
    ]
    for name, values in columns:
        if values:
            spread = f"{min(values) * 1e3:.2f} to {max(values) * 1e3:.2f}"
            yield name, statistics.median(values), spread


def _server(samples: Sequence[Sample]) -> dict[str, float]:
    """Medians by phase, where every answer told."""
    names = list(samples[0].server)
    return {
        name: statistics.median(sample.server[name] for sample in samples)
        for name in names
        if all(name in sample.server for sample in samples)
    }


def _verdicts(
    samples: Sequence[Sample], server: Mapping[str, float], config: BudgetsConfig
) -> Iterator[str]:
    """Each tier: PASS, or the parts that are over, by the medians of warm connections."""
    connects = [sample.connect for sample in samples if sample.connect is not None]
    took = {"network": statistics.median(connects)} if connects else {}
    if server:
        took["gateway"] = sum(server.get(phase, 0.0) for phase in OWN if phase != "tokenize")
        took["tokenize"] = server.get("tokenize", 0.0)
        took["first_token"] = server.get("first_token", 0.0)
    took["first_tokens"] = statistics.median(s.first_tokens - s.first_token for s in samples)
    whole = statistics.median(sample.first_tokens for sample in samples)
    for name, tier in config.tiers.items():
        over = list(_over(tier, took, whole))
        verdict = "OVER: " + ", ".join(over) if over else "PASS"
        yield f"{name:8} {tier.total_ms:6.0f} ms  {whole * 1e3:8.1f} ms  {verdict}"


def _over(tier: TierConfig, took: Mapping[str, float], whole: float) -> Iterator[str]:
    for part, seconds in {**took, "total": whole}.items():
        allowance: float | None = getattr(tier, f"{part}_ms")
        if allowance is not None and seconds * 1e3 > allowance:
            yield f"{part} {seconds * 1e3:.1f} of {allowance:g} ms"
