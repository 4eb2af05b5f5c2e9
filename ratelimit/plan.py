"""Which buckets a request draws on, and how much from each. Pure.

The plan for one caller and model is worked out once; per request only amounts are computed.

All keys of a plan lie together under its `tag`: the organisation, or the tenant when there is none.
Where a rule is shared by all of them (`per: [model]`), everything lies under one tag.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from operator import itemgetter
from typing import Final, NamedTuple
from urllib.parse import quote

from core.network import network_of
from core.principal import Principal, Quota
from ratelimit.bucket import MAX_TOKENS, UNITS, Limit
from ratelimit.config import WINDOW_S, PriceConfig, Rule, Unit

Amounts = tuple[int, ...]

COMMON_TAG: Final = "*"
"""No tenant is named so: a quoted name has no asterisk."""
_PLACES: Final[dict[Unit, int]] = {
    "requests": 0,
    "concurrent": 0,
    "input_tokens": 1,
    "output_tokens": 2,
    "total_tokens": 3,
    "cost_units": 4,
}
_MAX: Final = MAX_TOKENS * UNITS


class Who(NamedTuple):
    """What rules look at. `address` is the peer's."""

    principal: Principal
    model: str
    route: str = ""
    address: str = ""


class Price(NamedTuple):
    """Units (millionths of a cost unit) per token."""

    input: int
    cached: int
    output: int


FREE: Final = Price(0, 0, 0)


def price_of(config: PriceConfig | None) -> Price:
    if config is None:
        return FREE
    cached = config.input if config.cached is None else config.cached
    return Price(*(round(price * 1000) for price in (config.input, cached, config.output)))


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """One bucket of one rule: for token buckets as in `bucket.py`, for concurrent streams a number
    of slots (`limit.capacity` in units, one each). `key` names it, without any space; `hash` is 63
    bits of that, never 0."""

    rule: Rule
    key: str
    limit: Limit
    hash: int
    concurrent: bool


class Plan:
    """The buckets of one caller and model; immutable, compared by identity.

    `largest_prompt`: tokens that every bucket surely can hold. `nothing`: what a request that did
    not run has used. `shadows`: the indexes of buckets that refuse nothing. `releases`: some bucket
    counts streams.
    """

    __slots__ = (
        "_spread",
        "buckets",
        "largest_prompt",
        "model",
        "nothing",
        "price",
        "releases",
        "rules",
        "shadows",
        "tag",
    )

    def __init__(self, tag: str, model: str, price: Price, buckets: Iterable[Bucket]) -> None:
        self.tag = tag
        self.model = model
        self.price = price
        self.buckets = tuple(buckets)
        self.rules = tuple(bucket.rule for bucket in self.buckets)
        self.nothing: Amounts = (0,) * len(self.buckets)
        self.shadows = frozenset(i for i, rule in enumerate(self.rules) if rule.shadow)
        self.releases = any(bucket.concurrent for bucket in self.buckets)
        self._spread = _spreader([_PLACES[rule.unit] for rule in self.rules])
        self.largest_prompt = min([self._largest_prompt(b) for b in self.buckets], default=_MAX)

    def __repr__(self) -> str:
        return f"<Plan {self.tag} {self.model} {[bucket.key for bucket in self.buckets]}>"

    def narrowed(self, failure: str) -> Plan:
        """Only the rules whose `on_store_failure` is `failure`."""
        kept = [bucket for bucket in self.buckets if bucket.rule.on_store_failure == failure]
        return Plan(self.tag, self.model, self.price, kept)

    def amounts(self, prompt: int, cached: int, output: int) -> Amounts:
        """What so many tokens are in each bucket, in units. `cached` are a part of the prompt."""
        if not (0 <= cached <= prompt <= MAX_TOKENS and 0 <= output <= MAX_TOKENS):
            prompt, output = (min(max(count, 0), MAX_TOKENS) for count in (prompt, output))
            cached = min(max(cached, 0), prompt)
        return self._spread(
            (
                UNITS,
                prompt * UNITS,
                output * UNITS,
                (prompt + output) * UNITS,
                0 if self.price is FREE else self.cost(prompt, cached, output),
            )
        )

    def cost(self, prompt: int, cached: int, output: int) -> int:
        """In millionths of a cost unit."""
        price = self.price
        if price is FREE:
            return 0
        cost = (prompt - cached) * price.input + cached * price.cached + output * price.output
        return min(cost, _MAX)

    def least(self, prompt: int, output: int) -> Amounts:
        """What a bucket must hold for the request to begin: the prompt, at its lowest price, and
        one token of output if there may be any. What it costs beyond that is a matter of how much
        is there: an estimate refuses nothing."""
        cached = prompt if self.price.cached < self.price.input else 0
        return self.amounts(prompt, cached, min(1, output))

    def hopeless(self, least: Amounts) -> int | None:
        """The index of a bucket that could not hold so much even when full."""
        for i, bucket in enumerate(self.buckets):
            if least[i] > bucket.limit.capacity and not bucket.rule.shadow:
                return i
        return None

    def _largest_prompt(self, bucket: Bucket) -> int:
        capacity, unit = bucket.limit.capacity, bucket.rule.unit
        if not capacity and not bucket.rule.shadow:
            return -1
        if bucket.rule.shadow or unit in ("requests", "concurrent", "output_tokens"):
            return _MAX
        if unit == "input_tokens":
            return capacity // UNITS
        if unit == "total_tokens":
            return capacity // UNITS - 1
        price = min(self.price.input, self.price.cached)
        return max(0, capacity - self.price.output) // price if price else _MAX


def _spreader(places: list[int]) -> Callable[[tuple[int, ...]], Amounts]:
    """Turns the amounts of all units into one for each bucket. Twice or more per request, so it is
    a single call of C for two buckets and more."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda all_units: tuple([all_units[place] for place in places])


def make_plan(
    rules: Iterable[Rule], who: Who, price: Price = FREE, common: bool | None = None
) -> Plan:
    """The plan of the rules that concern this request, in their order. `common`: whether there is
    any rule that organisations share (None: look)."""
    rules = tuple(rules)
    if common is None:
        common = any(rule.is_common for rule in rules)
    values = _values(who)
    tag = COMMON_TAG if common else values["organisation"]
    own = dict(who.principal.limits)
    chosen = [_bucket(rule, values, own.get(rule.name)) for rule in rules if _concerns(rule, who)]
    return Plan(tag, who.model, price, chosen)


def _values(who: Who) -> dict[str, str]:
    """What stands for each dimension in keys. Names are quoted, and so free of : @ * and /."""
    caller = who.principal
    tenant = quote(caller.tenant, safe="")
    organisation = tenant
    if caller.organisation:
        organisation = "@" + quote(caller.organisation, safe="")
        tenant = f"{organisation}/{tenant}"
    return {
        "organisation": organisation,
        "tenant": tenant,
        "user": quote(caller.subject, safe=""),
        "key": quote(caller.key, safe=""),
        "model": quote(who.model, safe=""),
        "address": quote(network_of(who.address) or who.address, safe=""),
    }


def _concerns(rule: Rule, who: Who) -> bool:
    match, caller = rule.match, who.principal
    return (
        (not match.tenants or caller.tenant in match.tenants)
        and (not match.tiers or caller.tier in match.tiers)
        and (not match.models or who.model in match.models)
        and (not match.routes or who.route in match.routes)
    )


def dimensions(rule: Rule) -> list[str]:
    """What a bucket of the rule is for, in the order of its key: users and keys are told apart
    inside their tenant."""
    names: list[str] = list(rule.per)
    if "tenant" not in names and ("user" in names or "key" in names):
        names.insert(0, "tenant")
    return names


def _bucket(rule: Rule, values: dict[str, str], own: Quota | None) -> Bucket:
    limit, burst = own or (rule.limit, rule.burst)
    capacity = min(max(limit if burst is None else burst, 0), MAX_TOKENS)
    refill = min(max(limit, 1), MAX_TOKENS)  # nothing at all is a bucket without room
    key = ":".join([rule.name, rule.unit, *[values[name] for name in dimensions(rule)]])
    digest = blake2b(key.encode("ascii"), digest_size=8).digest()
    hashed = int.from_bytes(digest, "little") >> 1 or 1
    sizes = Limit(capacity * UNITS, refill, WINDOW_S[rule.window])
    return Bucket(rule, key, sizes, hashed, rule.unit == "concurrent")
