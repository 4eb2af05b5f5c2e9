"""What the live page shows: figures of the last seconds, made of readings of the metrics."""

from __future__ import annotations

from typing import Any

import pytest

from core.metrics import MetricsBoard
from proxy.budgets.config import BudgetsConfig
from proxy.budgets.judge import Judgement
from proxy.budgets.meters import BudgetMeters
from proxy.serve.page.view import WINDOW_S, View


class Gateway:
    """The metrics of two workers, and the page that is made of them."""

    def __init__(self) -> None:
        self._board = MetricsBoard(2)
        self.workers = [self._board.for_worker(index) for index in range(2)]
        self._view = View()

    def look(self, now: float, budgets: BudgetsConfig | None = None) -> dict[str, Any]:
        return self._view.take(self._board.collect(), now, budgets)

    def exchange(self, worker: int = 0, ttft_s: float = 0.02) -> None:
        metrics = self.workers[worker]
        metrics.counter("headrace_exchanges_total", "", ("route", "status")).labels(
            "r", "200"
        ).inc()
        tokens = metrics.counter("headrace_tokens_total", "", ("model", "kind"))
        tokens.labels("m", "prompt").inc(100)
        tokens.labels("m", "cached").inc(25)
        bounds = (0.01, 0.03, 0.1)
        name = "headrace_time_to_first_token_seconds"
        metrics.histogram(name, "", bounds, ("model",)).labels("m").observe(ttft_s)


def test_rates_are_of_the_window_and_of_all_workers() -> None:
    gateway = Gateway()
    gateway.exchange()
    gateway.look(100.0)
    for worker in (0, 1, 1):
        gateway.exchange(worker)
    traffic = gateway.look(102.0)["traffic"]
    assert traffic["requests_per_s"] == 1.5
    assert traffic["prompt_tokens_per_s"] == 150.0
    assert traffic["cached_share"] == 0.25
    assert 10 < traffic["ttft_ms"]["p50"] <= 30
    assert traffic["tpot_ms"] == {"p50": None, "p95": None, "p99": None}


def test_what_is_older_than_the_window_is_forgotten() -> None:
    gateway = Gateway()
    gateway.look(0.0)
    gateway.exchange(ttft_s=0.09)
    for second in range(1, 30):
        shown = gateway.look(float(second))
        assert shown["window_s"] <= WINDOW_S + 1
    assert shown["traffic"]["requests_per_s"] == 0
    assert shown["traffic"]["ttft_ms"]["p99"] is None


def test_replicas_with_what_they_have_to_do() -> None:
    gateway = Gateway()
    for metrics in gateway.workers:
        metrics.gauge("headrace_replica_healthy", "", ("replica",)).labels("a").set(1)
        metrics.gauge("headrace_replica_inflight", "", ("replica",)).labels("a").set(3)
        metrics.gauge("headrace_replica_inflight", "", ("replica",)).labels("b").set(0)
    state = gateway.workers[0].gauge("headrace_replica_kv_state", "", ("replica", "state"))
    state.labels("a", "exact").set(1)
    state.labels("a", "approx").set(0)
    circuit = gateway.workers[0].gauge("headrace_replica_circuit", "", ("replica", "state"))
    circuit.labels("b", "half-open").set(1)
    rows = gateway.look(1.0)["replicas"]
    assert [(row["id"], row["healthy_in"], row["in_flight"]) for row in rows] == [
        ("a", 2, 6),
        ("b", 0, 0),
    ]
    assert [row["tried_in"] for row in rows] == [0, 1]
    assert [row["cache"] for row in rows] == ["exact", "approx"]


def test_tiers_against_their_budgets() -> None:
    gateway = Gateway()
    meters = BudgetMeters(gateway.workers[0], ["voice", "chat", "rag"])
    gateway.look(0.0, BudgetsConfig())
    for late in (False, False, False, True):
        over = ("gateway",) if late else ()
        meters.note(Judgement("voice", {"gateway": 0.02 if late else 0.001}, over))
    meters.tell()
    (row,) = gateway.look(1.0, BudgetsConfig())["tiers"]
    assert (row["tier"], row["part"], row["count"], row["late"]) == ("voice", "gateway", 4, 0.25)
    assert row["allowed_ms"] == 5
    assert gateway.look(2.0)["tiers"] == []


def test_refusals_and_failures_the_most_frequent_first() -> None:
    gateway = Gateway()
    metrics = gateway.workers[1]
    decisions = metrics.counter("headrace_limit_decisions_total", "", ("rule", "unit", "result"))
    failures = metrics.counter("headrace_failures_total", "", ("phase", "reason"))
    decisions.labels("idle", "requests", "granted").inc()
    gateway.look(0.0)
    decisions.labels("day", "tokens", "granted").inc(7)
    decisions.labels("minute", "requests", "granted").inc(2)
    decisions.labels("minute", "requests", "refused").inc(3)
    failures.labels("connect", "upstream_unreachable").inc()
    failures.labels("reserve", "rate_limit_exceeded").inc(3)
    shown = gateway.look(1.0)
    assert shown["limits"] == [
        {"rule": "minute", "unit": "requests", "asked": 5, "refused": 3},
        {"rule": "day", "unit": "tokens", "asked": 7, "refused": 0},
    ]
    assert [row["count"] for row in shown["failures"]] == [3, 1]


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_an_idle_gateway_has_an_empty_page(seconds: float) -> None:
    shown = Gateway().look(seconds)
    assert shown["replicas"] == shown["limits"] == shown["failures"] == []
    assert shown["traffic"]["cached_share"] is None
