"""Plans and charges for tests of the limits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from core.principal import Principal
from ratelimit.bucket import UNITS
from ratelimit.config import Rule
from ratelimit.plan import Plan, Who, make_plan
from ratelimit.store import Charge

ACME = Principal("acme", "bob", "gold")
REQUESTS = Rule(name="requests", limit=10)
TOKENS = Rule(name="tokens", unit="total_tokens", limit=1000)
STREAMS = Rule(name="streams", unit="concurrent", limit=3)


def plan_of(*rules: Rule, principal: Principal = ACME, model: str = "m", **who: Any) -> Plan:
    return make_plan(rules, Who(principal, model, **who))


def charge_of(plan: Plan, prompt: int = 10, output: int = 0) -> Charge:
    return Charge(plan, plan.least(prompt, output), plan.amounts(prompt, 0, output))


def tokens(levels: Iterable[int]) -> list[float]:
    """Levels in whole units, as far as they are whole."""
    return [level / UNITS for level in levels]
