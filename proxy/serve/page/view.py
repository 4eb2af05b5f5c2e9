"""What the live page shows, made of readings of the metrics: figures of the last seconds. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from core.metric_rows import Family
from proxy.access_log import PHASE_SECONDS
from proxy.budgets.config import BudgetsConfig
from proxy.budgets.growth import Sums, grown
from proxy.budgets.judge import PARTS
from proxy.budgets.meters import BREACHES, SECONDS
from proxy.serve.histograms import Distribution

WINDOW_S = 10.0
Families = Mapping[str, Family]
Document = dict[str, Any]
Labels = tuple[str, ...]

_GAUGES = {
    "in_flight": "headrace_replica_inflight",
    "pending_tokens": "headrace_replica_pending_prefill_tokens",
    "live_tokens": "headrace_replica_live_kv_tokens",
}
_TTFT = "headrace_time_to_first_token_seconds"
_ITL = "headrace_inter_token_latency_seconds"
_TPOT = "headrace_time_per_output_token_seconds"


class View:
    """Readings of about the last ten seconds, the oldest first."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, Families]] = deque()

    def __repr__(self) -> str:
        return f"<View of {len(self._readings)} readings>"

    def take(self, families: Families, now: float, budgets: BudgetsConfig | None) -> Document:
        """The document for one more reading, at `now`."""
        readings = self._readings
        readings.append((now, families))
        while len(readings) > 2 and now - readings[1][0] >= WINDOW_S:
            readings.popleft()
        before_at, before = readings[0]
        change = _Change(before, families, max(now - before_at, 1e-9))
        return {
            "window_s": round(now - before_at, 1),
            "traffic": _traffic(change),
            "replicas": _replicas(change),
            "tiers": [] if budgets is None else _tiers(change, budgets),
            "slower": _slower(change),
            "limits": _limits(change),
            "failures": _failures(change),
        }


class _Change:
    """Two readings, `seconds` apart."""

    def __init__(self, before: Families, now: Families, seconds: float) -> None:
        self._before = before
        self._now = now
        self.seconds = seconds

    def now(self, name: str) -> Mapping[Labels, float]:
        family = self._now.get(name)
        return {} if family is None else {key: cells[0] for key, cells in family.series.items()}

    def risen(self, name: str) -> dict[Labels, float]:
        """How much each series of a counter rose."""
        family, old = self._before.get(name), self.now(name)
        before = {} if family is None else {key: cells[0] for key, cells in family.series.items()}
        return {key: max(value - before.get(key, 0.0), 0.0) for key, value in old.items()}

    def sums(self, name: str) -> tuple[dict[str, Sums], dict[str, Sums]]:
        """Of a histogram with one label: what it had before, and what came in between."""
        then, since = self._before.get(name), self._now.get(name)
        old: Mapping[Labels, list[float]] = {} if then is None else then.series
        series = {} if since is None else since.series
        before = {key: Sums(cells[0], sum(cells[1:])) for (key,), cells in old.items()}
        zero = Sums(0.0, 0.0)
        after = {}
        for (key,), cells in series.items():
            usual = before.get(key, zero)
            after[key] = Sums(cells[0] - usual.seconds, sum(cells[1:]) - usual.times)
        return before, after

    def distributions(self, name: str) -> dict[Labels, Distribution]:
        """What was observed in between, by series of a histogram."""
        family, before = self._now.get(name), self._before.get(name)
        if family is None:
            return {}
        bounds = (*family.entry.bounds, float("inf"))
        found = {}
        for key, cells in family.series.items():
            old = None if before is None else before.series.get(key)
            earlier = None if old is None else Distribution(bounds, tuple(old[1:]))
            found[key] = Distribution(bounds, tuple(cells[1:])).since(earlier)
        return found


def _traffic(change: _Change) -> Document:
    exchanges = change.risen("headrace_exchanges_total")
    tokens = change.risen("headrace_tokens_total")
    kinds = {kind: _sum(tokens, 1, kind) for kind in ("prompt", "cached", "completion")}
    prompt = kinds["prompt"]
    return {
        "in_flight": int(sum(change.now("headrace_exchanges_in_flight").values())),
        "connections": int(sum(change.now("headrace_downstream_connections").values())),
        "requests_per_s": _rate(sum(exchanges.values()), change),
        "failures_per_s": _rate(sum(change.risen("headrace_failures_total").values()), change),
        "prompt_tokens_per_s": _rate(prompt, change),
        "output_tokens_per_s": _rate(kinds["completion"], change),
        "cached_share": round(kinds["cached"] / prompt, 3) if prompt else None,
        "ttft_ms": _quantiles(change.distributions(_TTFT).values()),
        "itl_ms": _quantiles(change.distributions(_ITL).values()),
        "tpot_ms": _quantiles(change.distributions(_TPOT).values()),
    }


def _replicas(change: _Change) -> list[Document]:
    healthy = change.now("headrace_replica_healthy")
    gauges = {name: change.now(metric) for name, metric in _GAUGES.items()}
    circuits = change.now("headrace_replica_circuit")
    kv_states = change.now("headrace_replica_kv_state")
    ids = sorted({key[0] for key in (*healthy, *gauges["in_flight"]) if key})
    found = []
    for replica_id in ids:
        key = (replica_id,)
        row: Document = {"id": replica_id, "healthy_in": int(healthy.get(key, 0.0))}
        row |= {name: int(values.get(key, 0)) for name, values in gauges.items()}
        row["tried_in"] = int(circuits.get((replica_id, "half-open"), 0.0))
        states = [(n, state) for (name, state), n in kv_states.items() if name == replica_id and n]
        row["cache"] = max(states)[1] if states else "approx"
        found.append(row)
    return found


def _tiers(change: _Change, budgets: BudgetsConfig) -> list[Document]:
    took = change.distributions(SECONDS)
    late = change.risen(BREACHES)
    found = []
    for name, tier in budgets.tiers.items():
        for part in PARTS:
            seen = took.get((name, part))
            if seen is None or not seen.count:
                continue
            row: Document = {"tier": name, "part": part, "count": int(seen.count)}
            row["allowed_ms"] = getattr(tier, f"{part}_ms")
            row |= _quantiles([seen])
            row["late"] = round(late.get((name, part), 0.0) / seen.count, 4)
            found.append(row)
    return found


def _slower(change: _Change) -> list[Document]:
    """Phases that take longer in the window than in all the time before."""
    return [
        {"phase": phase, "usual_ms": round(usual_s * 1e3, 2), "now_ms": round(now_s * 1e3, 2)}
        for phase, usual_s, now_s in grown(*change.sums(PHASE_SECONDS))
    ]


def _limits(change: _Change) -> list[Document]:
    """Rules that refused in the window, the busiest first."""
    rows: dict[Labels, dict[str, float]] = {}
    for (rule, unit, result), count in change.risen("headrace_limit_decisions_total").items():
        rows.setdefault((rule, unit), {})[result] = count
    found = []
    for (rule, unit), results in rows.items():
        asked = sum(results.values())
        refused = sum(
            n for result, n in results.items() if "refused" in result or result == "never"
        )
        if asked:
            found.append({"rule": rule, "unit": unit, "asked": int(asked), "refused": int(refused)})
    return sorted(found, key=lambda row: -int(str(row["refused"])))


def _failures(change: _Change) -> list[Document]:
    risen = change.risen("headrace_failures_total")
    found = [
        {"phase": phase, "reason": reason, "count": int(count)}
        for (phase, reason), count in risen.items()
        if count
    ]
    return sorted(found, key=lambda row: -int(str(row["count"])))


def _rate(count: float, change: _Change) -> float:
    return round(count / change.seconds, 1)


def _sum(values: Mapping[Labels, float], place: int, label: str) -> float:
    return sum(value for key, value in values.items() if key[place] == label)


def _quantiles(parts: Any) -> Document:
    """p50, p95 and p99 of several histograms together, in milliseconds."""
    whole = _together(list(parts))
    found: Document = {}
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        value = None if whole is None else whole.quantile(share)
        found[name] = None if value is None else round(value * 1e3, 2)
    return found


def _together(parts: Sequence[Distribution]) -> Distribution | None:
    if not parts:
        return None
    counts = [sum(column) for column in zip(*[part.counts for part in parts], strict=True)]
    return Distribution(parts[0].bounds, tuple(counts))
