"""The section `budgets`: how many milliseconds each phase of an exchange may take, by tier."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from core.describe import did_you_mean
from core.section import Contradictions, Section

Milliseconds = Annotated[float, Meta(gt=0, le=3_600_000)]
Names = tuple[str, ...]


class TierConfig(Section):
    """Allowances in milliseconds; None: not judged.

    `network_ms` and `guardrail_ms` are spent where the gateway cannot see it, and set aside of
    `total_ms`; `context_ms` is what the client says it has spent before (retrieval, say).
    `tls_ms` is for the handshake, of the first request of a connection.
    `first_tokens_ms` is from the first event to the tenth, or to the end of a shorter answer.
    `total_ms` is everything up to then.
    """

    total_ms: Milliseconds
    network_ms: Milliseconds | None = None
    context_ms: Milliseconds | None = None
    tls_ms: Milliseconds | None = None
    gateway_ms: Milliseconds | None = None
    tokenize_ms: Milliseconds | None = None
    first_token_ms: Milliseconds | None = None
    first_tokens_ms: Milliseconds | None = None
    guardrail_ms: Milliseconds | None = None


def _usual_tiers() -> dict[str, TierConfig]:
    return {
        "voice": TierConfig(
            total_ms=400,
            network_ms=25,
            gateway_ms=5,
            tokenize_ms=3,
            first_token_ms=90,
            first_tokens_ms=180,
            guardrail_ms=15,
        ),
        "chat": TierConfig(
            total_ms=800,
            network_ms=45,
            context_ms=40,
            gateway_ms=10,
            tokenize_ms=8,
            first_token_ms=160,
            first_tokens_ms=220,
            guardrail_ms=30,
        ),
        "rag": TierConfig(
            total_ms=1500,
            network_ms=70,
            context_ms=250,
            gateway_ms=15,
            tokenize_ms=35,
            first_token_ms=380,
            first_tokens_ms=280,
            guardrail_ms=80,
        ),
    }


class TierRule(Section):
    """Requests to these `models`, at these `routes`, of these `tenants` (each empty: any) are of
    this `tier`."""

    tier: str
    tenants: Names = ()
    models: Names = ()
    routes: Names = ()


class BudgetsConfig(Section):
    """The first of `rules` that fits gives a request its tier, else `default` does (None: its time
    is not judged). With `client_header` a client may name the tier in `X-Headrace-Tier`. With
    `refuse_late` a request is refused when its first token is predicted to come after it is due."""

    tiers: Annotated[dict[str, TierConfig], Meta(min_length=1, max_length=16)] = msgspec.field(
        default_factory=_usual_tiers
    )
    default: str | None = None
    rules: tuple[TierRule, ...] = ()
    client_header: bool = False
    refuse_late: bool = False

    def __post_init__(self) -> None:
        if faults := list(self._faults()):
            raise Contradictions(faults)

    def _faults(self) -> Iterator[tuple[str, str]]:
        named = [(".default", self.default)] if self.default is not None else []
        named += [(f".rules[{n}].tier", rule.tier) for n, rule in enumerate(self.rules)]
        for place, name in named:
            if name not in self.tiers:
                known = ", ".join(self.tiers)
                hint = did_you_mean(name, self.tiers) or f"; tiers: {known}"
                yield place, f"no tier is named `{name}`{hint}"
