"""What is counted of each judgement."""

from __future__ import annotations

from core.metrics import MetricsBoard
from proxy.budgets.judge import Judgement
from proxy.budgets.meters import BREACHES, EXCHANGES, SECONDS, BudgetMeters


def test_a_judgement_is_counted_by_tier_and_part() -> None:
    board = MetricsBoard(1)
    metrics = board.for_worker(0)
    meters = BudgetMeters(metrics, ["voice", "chat"])
    meters.note(Judgement("voice", {"gateway": 0.02, "tokenize": 0.001}, ("gateway",)))
    meters.note(Judgement("voice", {"gateway": 0.001, "tokenize": 0.001}, ()))
    meters.tell()
    meters.tell()
    assert metrics.value(EXCHANGES, "voice") == 2
    assert metrics.value(EXCHANGES, "chat") == 0
    assert metrics.value(BREACHES, "voice", "gateway") == 1
    assert metrics.value(BREACHES, "voice", "tokenize") == 0
    series = board.collect()[SECONDS].series
    assert sum(series["voice", "gateway"][1:]) == 2
