"""Which tier a request is of, and which parts were over."""

from __future__ import annotations

import pytest

from core.exchange import Handshake, Request
from proxy.budgets.config import BudgetsConfig, TierConfig, TierRule
from proxy.budgets.judge import Budgets, declared_s

SPENT = {"head": 0.001, "body": 0.002, "gate": 0.001, "auth": 0.001, "tokenize": 0.004}
SPENT |= {"reserve": 0.001, "route": 0.001, "connect": 0.001, "first_token": 0.08, "relay": 1.0}


def request(path: str = "/v1/chat/completions", **headers: str) -> Request:
    fields = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
    return Request("POST", path, "", fields, b"", "127.0.0.1", "1.1", 0.0, 0.0)


def test_the_first_rule_that_fits_gives_the_tier() -> None:
    rules = (
        TierRule(tier="voice", tenants=("acme",), models=("small",)),
        TierRule(tier="rag", routes=("/v1/completions",)),
    )
    budgets = Budgets(BudgetsConfig(rules=rules, default="chat"))
    assert budgets.tier_of(request(), "acme", "small") == "voice"
    assert budgets.tier_of(request(), "acme", "large") == "chat"
    assert budgets.tier_of(request(), None, "small") == "chat"
    assert budgets.tier_of(request("/v1/completions"), "acme", "large") == "rag"
    assert Budgets(BudgetsConfig()).tier_of(request(), "acme", "small") is None


def test_a_client_names_its_tier_only_where_it_may() -> None:
    asking = request(x_headrace_tier="voice")
    assert Budgets(BudgetsConfig(default="chat")).tier_of(asking, None, "m") == "chat"
    trusting = Budgets(BudgetsConfig(default="chat", client_header=True))
    assert trusting.tier_of(asking, None, "m") == "voice"
    assert trusting.tier_of(request(x_headrace_tier="gold"), None, "m") == "chat"


def test_each_part_is_compared_with_its_allowance() -> None:
    budgets = Budgets(BudgetsConfig())
    judged = budgets.judge("voice", SPENT, context_s=0.0, first_tokens_s=0.15)
    assert judged.over == ("tokenize",)
    assert judged.took["gateway"] == pytest.approx(0.005)
    # 3 received, 5 + 4 + 80 + 150 measured, 25 + 15 set aside
    assert judged.took["total"] == pytest.approx(0.282)
    late = budgets.judge("voice", SPENT, context_s=0.2, first_tokens_s=0.19)
    assert late.over == ("tokenize", "first_tokens", "total")


def test_what_never_began_is_judged_as_far_as_it_came() -> None:
    budgets = Budgets(BudgetsConfig())
    judged = budgets.judge("voice", {"auth": 0.02}, context_s=0.0, first_tokens_s=None)
    assert judged.over == ("gateway",)
    assert judged.took == {"gateway": 0.02, "tokenize": 0.0}


def test_without_an_allowance_nothing_is_too_long() -> None:
    budgets = Budgets(BudgetsConfig(tiers={"t": TierConfig(total_ms=10_000)}))
    assert budgets.judge("t", SPENT, context_s=1.0, first_tokens_s=1.0).over == ()


def test_the_first_token_is_due_when_the_client_says_or_the_tier_leaves() -> None:
    budgets = Budgets(BudgetsConfig(default="voice"))

    def due(**headers: str) -> float | None:
        return budgets.first_token_by(request(**headers), "acme", "m")

    # 400 in all, less 25 network, 15 guardrail and 180 for the first tokens
    assert due() == pytest.approx(0.18)
    assert due(x_headrace_spent_ms="50") == pytest.approx(0.13)
    assert due(x_headrace_budget_ms="90") == pytest.approx(0.09)
    assert due(x_headrace_budget_ms="soon") == pytest.approx(0.18)
    assert Budgets(BudgetsConfig()).first_token_by(request(), None, "m") is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("120", 0.12), ("0.5", 0.0005), ("-1", 0.0), ("nan", 0.0), ("1e9", 0.0), ("soon", 0.0)],
)
def test_only_sensible_declarations_count(text: str, seconds: float) -> None:
    assert declared_s(request(x_headrace_spent_ms=text)) == seconds
    assert declared_s(request()) == 0.0


def test_a_handshake_is_judged_where_there_was_one() -> None:
    config = BudgetsConfig(tiers={"t": TierConfig(total_ms=400, tls_ms=20)})
    judged = Budgets(config).judge("t", {"tls": 0.03, **SPENT}, context_s=0, first_tokens_s=0.1)
    assert judged.over == ("tls",)
    assert judged.took["total"] == pytest.approx(0.222)  # 30 + 3 received, 9 + 80 + 100
    asking = request()
    without = Budgets(config).first_token_by(asking, None, "m")
    asking.handshake = Handshake(0.03, False)
    due_at = Budgets(BudgetsConfig(tiers=config.tiers, default="t")).first_token_by(
        asking, None, "m"
    )
    assert (without, due_at) == (None, pytest.approx(0.37))
