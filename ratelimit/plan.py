"""Which buckets a request draws on, and how much from each. Pure.

The plan for one tenant, tier and model is worked out once; per request only amounts are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, Literal
from urllib.parse import quote

from ratelimit.bucket import MAX_TOKENS, UNITS, Limit, units
from ratelimit.config import Rule

Kind = Literal["requests", "tokens"]
Amounts = tuple[int, ...]
Field = tuple[bytes, bytes]

NAMES: Final[dict[Kind, tuple[bytes, bytes, bytes]]] = {
    "requests": (
        b"x-ratelimit-limit-requests",
        b"x-ratelimit-remaining-requests",
        b"x-ratelimit-reset-requests",
    ),
    "tokens": (
        b"x-ratelimit-limit-tokens",
        b"x-ratelimit-remaining-tokens",
        b"x-ratelimit-reset-tokens",
    ),
}
"""Header names: the limit, what remains of it, when it is whole again."""


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """One bucket of one rule. `key` names it inside the tenant, without any space.

    `told`: capacity, rate, and the header fields about it as far as they never change.
    """

    rule: Rule
    kind: Kind
    key: str
    limit: Limit
    limit_header: bytes

    @property
    def told(self) -> tuple[int, int, Field, bytes, bytes]:
        limit, remaining, reset = NAMES[self.kind]
        return *self.limit, (limit, self.limit_header), remaining, reset


class Plan:
    """The buckets of one tenant, tier and model; immutable, compared by identity.

    `tenant` is quoted, for use in keys. `lease_us`: the longest lease of the rules.
    `token_capacities` runs parallel to `buckets`: units, None where requests are counted.
    `by_kind`: the indexes of the buckets of each kind there is. `told`: of each bucket.
    `largest_prompt`: tokens that every bucket can hold. `spread` turns the amounts (requests,
    tokens) into one for each bucket.
    """

    __slots__ = (
        "buckets",
        "by_kind",
        "largest_prompt",
        "lease_us",
        "model",
        "nothing",
        "rules",
        "spread",
        "tenant",
        "token_capacities",
        "told",
    )

    def __init__(self, tenant: str, model: str, rules: Iterable[Rule]) -> None:
        self.tenant = tenant
        self.model = model
        self.rules = tuple(rules)
        self.buckets = tuple(bucket for rule in self.rules for bucket in _buckets(rule, model))
        self.lease_us = max((int(rule.lease_s * 1e6) for rule in self.rules), default=0)
        self.nothing: Amounts = (0,) * len(self.buckets)
        self.token_capacities = tuple(
            bucket.limit.capacity if bucket.kind == "tokens" else None for bucket in self.buckets
        )
        kinds: dict[Kind, list[int]] = {}
        for i, bucket in enumerate(self.buckets):
            kinds.setdefault(bucket.kind, []).append(i)
        self.by_kind = tuple(tuple(indexes) for indexes in kinds.values())
        self.told = tuple(bucket.told for bucket in self.buckets)
        capacities = [capacity for capacity in self.token_capacities if capacity is not None]
        self.largest_prompt = min(capacities, default=MAX_TOKENS * UNITS) // UNITS
        self.spread = _spreader([int(bucket.kind == "tokens") for bucket in self.buckets])

    def __repr__(self) -> str:
        return f"<Plan {self.tenant} {self.model} {[bucket.key for bucket in self.buckets]}>"

    def narrowed(self, failure: str) -> Plan:
        """Only the rules whose `on_store_failure` is `failure`."""
        rules = [rule for rule in self.rules if rule.on_store_failure == failure]
        return Plan(self.tenant, self.model, rules)

    def amounts(self, tokens: int) -> Amounts:
        """What to reserve for prompt and estimated output, in units: never more than a full
        bucket has, so that an estimate alone refuses nothing (a prompt may, see `hopeless`)."""
        total = units(tokens)
        return tuple(
            [
                UNITS if capacity is None else min(total, capacity)
                for capacity in self.token_capacities
            ]
        )

    def used(self, tokens: int) -> Amounts:
        """What a request that ran has used, in units."""
        return self.spread((UNITS, tokens * UNITS if 0 <= tokens <= MAX_TOKENS else units(tokens)))

    def hopeless(self, prompt_tokens: int) -> Bucket | None:
        """The bucket that could not grant the prompt alone even when full."""
        prompt = units(prompt_tokens)
        for i, capacity in enumerate(self.token_capacities):
            if capacity is not None and prompt > capacity:
                return self.buckets[i]
        return None


def _spreader(places: list[int]) -> Callable[[tuple[int, int]], Amounts]:
    """Turns the amounts (requests, tokens) into one for each bucket: it counts `places[i]`.

    Once or twice per request, so it is a single call of C for two buckets and more.
    """
    if len(places) > 1:
        return itemgetter(*places)
    return lambda pair: tuple([pair[place] for place in places])


def make_plan(rules: Iterable[Rule], tenant: str, tier: str, model: str) -> Plan:
    """The plan of the rules that concern this tenant, tier and model, in their order."""
    chosen = (rule for rule in rules if _concerns(rule, tenant, tier, model))
    return Plan(quote(tenant, safe=""), model, chosen)


def _concerns(rule: Rule, tenant: str, tier: str, model: str) -> bool:
    return (
        (not rule.tenants or tenant in rule.tenants)
        and (not rule.tiers or tier in rule.tiers)
        and (not rule.models or model in rule.models)
    )


def _buckets(rule: Rule, model: str) -> list[Bucket]:
    scope = quote(model, safe="") if "model" in rule.per else ""
    given: tuple[tuple[Kind, int | None, int | None], ...] = (
        ("requests", rule.requests_per_minute, rule.requests_burst),
        ("tokens", rule.tokens_per_minute, rule.tokens_burst),
    )
    return [
        Bucket(
            rule,
            kind,
            f"{rule.name}:{kind}:{scope}",
            Limit((burst or rate) * UNITS, rate),
            b"%d" % (burst or rate),
        )
        for kind, rate, burst in given
        if rate is not None
    ]
