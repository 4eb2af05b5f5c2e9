"""Which tier an exchange is of, and where it took longer than it may. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat
from operator import gt
from typing import NamedTuple

from core.exchange import Request
from proxy.budgets.config import BudgetsConfig, TierConfig
from proxy.phases import OWN

TIER_HEADER = b"x-headrace-tier"
SPENT_HEADER = b"x-headrace-spent-ms"
LEFT_HEADER = b"x-headrace-budget-ms"
PARTS = ("context", "tls", "gateway", "tokenize", "first_token", "first_tokens", "total")
"""What is judged, in the order of an exchange; `total` holds all the others and receiving too."""

_GATEWAY = tuple(phase for phase in OWN if phase != "tokenize")
_NOTHING = repeat(0.0)
_MOST_MS = 3_600_000.0


class Judgement(NamedTuple):
    """`took`: seconds by part, as far as the exchange came. `over`: parts beyond their allowance,
    in the order of `PARTS`."""

    tier: str
    took: Mapping[str, float]
    over: tuple[str, ...]


class Budgets:
    """The tiers of one configuration."""

    def __init__(self, config: BudgetsConfig) -> None:
        self._config = config
        self._tiers = {name: _Tier(tier) for name, tier in config.tiers.items()}

    def __repr__(self) -> str:
        return f"<Budgets {list(self._tiers)}>"

    def tier_of(self, request: Request, tenant: str | None, model: str | None) -> str | None:
        """The name of its tier, if it has one."""
        config = self._config
        if config.client_header:
            wish = request.header(TIER_HEADER)
            if wish is not None and (name := wish.decode("latin-1")) in self._tiers:
                return name
        for rule in config.rules:
            if (
                (not rule.tenants or tenant in rule.tenants)
                and (not rule.models or model in rule.models)
                and (not rule.routes or request.path in rule.routes)
            ):
                return rule.tier
        return config.default

    @property
    def refuse_late(self) -> bool:
        return self._config.refuse_late

    def first_token_by(
        self, request: Request, tenant: str | None, model: str | None
    ) -> float | None:
        """The instant at which the first token is due: what the client says that it has left
        (`X-Headrace-Budget-Ms`), else what its tier leaves; None: no matter when."""
        left_s = _header_s(request, LEFT_HEADER)
        if left_s is not None:
            return request.received_at + left_s
        tier = self.tier_of(request, tenant, model)
        if tier is None:
            return None
        shake = request.handshake
        spent_s = declared_s(request) + (0.0 if shake is None else shake.seconds)
        return request.received_at + self._tiers[tier].first_token_s - spent_s

    def judge(
        self,
        tier: str,
        spent: Mapping[str, float],
        *,
        context_s: float,
        first_tokens_s: float | None,
    ) -> Judgement:
        """`spent`: seconds by phase (`proxy/phases.py`). `context_s`: spent before the request, as
        the client said. `first_tokens_s`: None when no event came."""
        get, own = spent.get, self._tiers[tier]
        took = {"context": context_s} if context_s else {}
        if "tls" in spent:
            took["tls"] = spent["tls"]
        took["gateway"] = sum(map(get, _GATEWAY, _NOTHING))
        took["tokenize"] = get("tokenize", 0.0)
        if first_tokens_s is not None:
            took["first_token"] = get("first_token", 0.0)
            took["first_tokens"] = first_tokens_s
            received = get("head", 0.0) + get("body", 0.0)
            took["total"] = sum(took.values()) + received + own.set_aside_s
        bounds = own.bounds
        over: tuple[str, ...] = ()
        if any(map(gt, took.values(), map(bounds.__getitem__, took))):
            over = tuple([part for part, s in took.items() if s > bounds[part]])
        return Judgement(tier, took, over)


class _Tier:
    """One tier in seconds. `set_aside_s`: of its total, for what is spent elsewhere;
    `first_token_s`: what is left of it until the first token."""

    __slots__ = ("bounds", "first_token_s", "set_aside_s")

    def __init__(self, config: TierConfig) -> None:
        self.set_aside_s = ((config.network_ms or 0.0) + (config.guardrail_ms or 0.0)) / 1e3
        self.bounds = {part: _seconds(getattr(config, f"{part}_ms")) for part in PARTS}
        after_s = self.set_aside_s + (config.first_tokens_ms or 0.0) / 1e3
        self.first_token_s = self.bounds["total"] - after_s

    def __repr__(self) -> str:
        return f"<_Tier {self.bounds}>"


def _seconds(ms: float | None) -> float:
    return float("inf") if ms is None else ms / 1e3


def declared_s(request: Request) -> float:
    """Seconds that the client says were spent before the request (`X-Headrace-Spent-Ms`); 0 when
    it says nothing that makes sense."""
    return _header_s(request, SPENT_HEADER) or 0.0


def _header_s(request: Request, name: bytes) -> float | None:
    """Seconds, of a header in milliseconds; None when it says nothing that makes sense."""
    value = request.header(name)
    if value is None:
        return None
    try:
        ms = float(value)
    except ValueError:
        return None
    return ms / 1e3 if 0 <= ms <= _MOST_MS else None
