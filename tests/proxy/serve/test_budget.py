"""The table of `headrace budget`, made of two readings of the metrics."""

from __future__ import annotations

from core.metrics import MetricsBoard
from proxy.budgets.config import BudgetsConfig
from proxy.budgets.judge import Budgets
from proxy.budgets.meters import BudgetMeters
from proxy.serve.budget import render, rows
from proxy.serve.exposition import render as exposition
from proxy.serve.histograms import Page

CONFIG = BudgetsConfig(default="voice")


class Gateway:
    """The budgets' metrics of a worker, and what they look like on the page."""

    def __init__(self) -> None:
        self._board = MetricsBoard(1)
        self._meters = BudgetMeters(self._board.for_worker(0), CONFIG.tiers)
        self._budgets = Budgets(CONFIG)

    def exchanges(self, count: int, **spent_ms: float) -> None:
        spent = {phase: ms / 1e3 for phase, ms in spent_ms.items()}
        for _ in range(count):
            self._meters.note(
                self._budgets.judge("voice", spent, context_s=0.0, first_tokens_s=0.1)
            )
        self._meters.tell()

    def page(self) -> Page:
        return Page(b"".join(exposition(self._board.collect().values(), False)).decode())


def test_the_part_that_is_late_now_is_named() -> None:
    gateway = Gateway()
    gateway.exchanges(1000, auth=1, tokenize=1, first_token=50)
    before = gateway.page()
    gateway.exchanges(80, auth=1, tokenize=1, first_token=50)
    gateway.exchanges(20, auth=21, tokenize=1, first_token=50)
    found = {row.part: row for row in rows(CONFIG, before, gateway.page()) if row.tier == "voice"}
    assert {part for part, row in found.items() if row.verdict == "OVER"} == {"gateway"}
    gateway_row = found["gateway"]
    assert (gateway_row.count, gateway_row.late) == (100, 0.2)
    assert gateway_row.p50 is not None
    assert gateway_row.p50 <= 1.0
    assert gateway_row.p99 is not None
    assert 20 < gateway_row.p99 <= 30
    # 20 of 1,100 since the start are no more than may be
    whole = [row for row in rows(CONFIG, None, gateway.page()) if row.tier == "voice"]
    assert {row.part: row.verdict for row in whole}["gateway"] == "PASS"


def test_the_table_has_the_tiers_that_were_busy() -> None:
    gateway = Gateway()
    assert "No exchange" in render(list(rows(CONFIG, None, gateway.page())))
    gateway.exchanges(3, auth=1, tokenize=4)
    text = render(list(rows(CONFIG, None, gateway.page())))
    assert "voice      tokenize" in text
    assert "100.0%  OVER" in text
    assert "chat" not in text
    assert "3 voice" in text
