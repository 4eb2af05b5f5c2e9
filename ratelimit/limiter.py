"""The limits on one request: reserve before it runs, report while it runs, settle when it ended.

When the store fails, each rule goes by its `on_store_failure`. `local` counts in the memory of this
process with the same limits, from full buckets. Nothing is carried over in either direction, so the
bound is: during an outage of T windows, n gateway processes together admit at most
n * (burst + T * limit) per bucket, and what the store's bucket holds once more when it is back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from core.clock import Clock
from core.errors import GatewayError, Unavailable
from core.identity import identity
from core.metrics import Counter, Metrics
from core.principal import Principal
from ratelimit import answer
from ratelimit.answer import DEGRADED, Told
from ratelimit.bucket import UNITS
from ratelimit.config import LimitsConfig, RedisStoreConfig, Rule
from ratelimit.estimate import Estimates
from ratelimit.leases import Leases
from ratelimit.memory_store import MemoryStore
from ratelimit.plan import FREE, Amounts, Bucket, Plan, Price, Who, make_plan, price_of
from ratelimit.redis_store import RedisStore
from ratelimit.reservation import Reservation
from ratelimit.shared_store import SharedBuckets, SharedStore
from ratelimit.store import Charge, Decision, Store, StoreUnavailable

PLANS: Final = 10_000
RETRY_CLOSED_S: Final = 1.0


class Limiter:
    """All limits of a gateway process. `clock` is monotonic and drives the local buckets.

    `shared`: the memory of this host's workers, and which of them this is, for `store: memory`.
    Without it this process counts alone. `store` takes the place of the one that the configuration
    names. `previous` is the limiter of an earlier configuration: what it has counted in this
    process and learned goes on, by the names of the rules, and so does its store if it is the same
    one. Whoever has several limiters starts and closes each `store` once, instead of them.
    `estimates` is what was learned of the models.
    """

    def __init__(
        self,
        config: LimitsConfig,
        metrics: Metrics,
        clock: Clock = time.monotonic,
        *,
        store: Store | None = None,
        shared: tuple[SharedBuckets, int] | None = None,
        previous: Limiter | None = None,
    ) -> None:
        self._config = config
        self._local: MemoryStore = previous._local if previous else MemoryStore(clock)
        self._store_is = identity((config.store, config.lease_s))
        self._reached = False
        self.store: Leases
        if store is None and previous is not None and previous._store_is == self._store_is:
            self.store = previous.store
            self._reached = previous._reached
        else:
            used = store or self._store_of(config, metrics, clock, shared)
            self.store = Leases(used, config.lease_s, clock)
        self._prices = {model: price_of(price) for model, price in config.prices.items()}
        self._common = any(rule.is_common for rule in config.rules)
        self._plans: dict[tuple[object, ...], _Made] = {}
        self._local_plans: dict[Plan, tuple[Plan, Told]] = {}
        self._key = _Key(config.rules)
        self._decisions = metrics.counter(
            "headrace_limit_decisions_total",
            "Decisions of the limits: granted, refused, never (no full bucket could) or "
            "shadow_refused by the store, local_... without it; open or closed, as the rule asks "
            "for without it.",
            ("rule", "unit", "result"),
        )
        self._count_granted = {
            rule.name: self._counter(rule, "granted").inc for rule in config.rules
        }
        first, most = config.output_estimate_tokens, config.output_reserve_cap_tokens
        self.estimates: Estimates = Estimates(first, most, previous.estimates if previous else None)

    def __repr__(self) -> str:
        return f"<Limiter {len(self._config.rules)} rules, {self.store}>"

    def _store_of(
        self,
        config: LimitsConfig,
        metrics: Metrics,
        clock: Clock,
        shared: tuple[SharedBuckets, int] | None,
    ) -> Store:
        if isinstance(config.store, RedisStoreConfig):
            return RedisStore(config.store.redis, metrics, config.lease_s)
        if shared is not None:
            buckets, worker = shared
            return SharedStore(buckets, worker, config.lease_s, clock)
        return self._local

    async def start(self) -> None:
        """Returns also when the store cannot be reached: it is tried on in the background."""
        await self.store.start()

    async def close(self) -> None:
        await self.store.close()

    def ready(self) -> str | None:
        """None, or why this gateway should get no requests: its store was never reached, or it is
        not in use and a rule is `closed`. An outage that rules are meant to bridge is no reason:
        it would take every gateway out of service at once."""
        rules = self._config.rules
        reason = self.store.store.ready() if rules else None
        self._reached = self._reached or reason is None
        if self._reached and all(rule.on_store_failure != "closed" for rule in rules):
            return None
        return reason

    async def reserve(
        self,
        principal: Principal,
        *,
        model: str,
        prompt_tokens: int,
        max_output_tokens: int | None,
        route: str = "",
        address: str = "",
    ) -> Reservation:
        """Charge every bucket that concerns this request, or none.

        Raises RateLimited with the headers and the time to wait, Forbidden when no full bucket
        could grant the prompt, or Unavailable when the store fails and a rule is `closed`.
        """
        key = self._key.of(principal, model, route, address)
        made = self._plans.get(key) or self._plan(key, principal, model, route, address)
        plan, said, granted = made
        output = self.estimates.output(model, max_output_tokens)
        if not plan.buckets:
            return Reservation(prompt_tokens, output)
        least = plan.least(prompt_tokens, output)
        if prompt_tokens > plan.largest_prompt:
            self._refuse_hopeless(plan, least, prompt_tokens)
        charge = Charge(plan, least, plan.amounts(prompt_tokens, 0, output))
        try:
            decision = await self.store.store.reserve(charge)
        except StoreUnavailable as error:
            return await self._without_store(plan, prompt_tokens, output, error)
        if not decision.granted:
            raise self._refusal(charge, said, decision, "refused")
        shadowed: tuple[str, ...] = ()
        if decision.shadowed:
            shadowed = self._count_shadow(plan, decision.shadowed, "")
        for name, count in granted:
            if name not in shadowed:
                count()
        fields = answer.headers(said, decision.levels)
        reservation = Reservation(prompt_tokens, output, fields, shadowed)
        return self.store.hold(reservation, self.store.store, charge)

    async def levels(self, who: Who) -> list[tuple[Bucket, int]]:
        """For operators: each bucket of such a request, and its level in units. Raises
        StoreUnavailable."""
        plan = make_plan(self._config.rules, who, self._price(who.model), self._common)
        if not plan.buckets:
            return []
        return list(zip(plan.buckets, await self.store.store.levels(plan), strict=True))

    async def reset(self, who: Who) -> None:
        """Fill each bucket of such a request. Raises StoreUnavailable."""
        plan = make_plan(self._config.rules, who, self._price(who.model), self._common)
        if plan.buckets:
            await self.store.store.reset(plan)

    def cost(self, model: str, prompt: int, cached: int, output: int) -> float | None:
        """In cost units; None for a model without a price."""
        if model not in self._prices:
            return None
        return Plan("", model, self._prices[model], ()).cost(prompt, cached, output) / UNITS

    async def _without_store(
        self, plan: Plan, prompt_tokens: int, output: int, error: StoreUnavailable
    ) -> Reservation:
        """As the rules ask for: any `closed` refuses, `local` ones are counted here."""
        closed = False
        for rule in plan.rules:
            if rule.on_store_failure != "local":
                self._counter(rule, rule.on_store_failure).inc()
                closed = closed or (rule.on_store_failure == "closed" and not rule.shadow)
        if closed:
            raise Unavailable(
                "The limits cannot be checked at the moment.",
                code="limits_unavailable",
                retry_after_s=RETRY_CLOSED_S,
                headers=(DEGRADED,),
            ) from error
        if plan not in self._local_plans:
            narrowed = plan.narrowed("local")
            self._local_plans[plan] = (narrowed, answer.told(narrowed))
        local, said = self._local_plans[plan]
        if not local.buckets:
            return Reservation(prompt_tokens, output, (DEGRADED,), degraded=True)
        charge = Charge(
            local, local.least(prompt_tokens, output), local.amounts(prompt_tokens, 0, output)
        )
        decision = await self._local.reserve(charge)
        if not decision.granted:
            refusal = self._refusal(charge, said, decision, "local_refused")
            refusal.headers = (*refusal.headers, DEGRADED)
            raise refusal
        shadowed = self._count_shadow(local, decision.shadowed, "local_")
        for rule in local.rules:
            if rule.name not in shadowed:
                self._counter(rule, "local_granted").inc()
        fields = (*answer.headers(said, decision.levels), DEGRADED)
        reservation = Reservation(prompt_tokens, output, fields, shadowed, degraded=True)
        return self.store.hold(reservation, self._local, charge)

    def _refuse_hopeless(self, plan: Plan, least: Amounts, prompt_tokens: int) -> None:
        index = plan.hopeless(least)
        if index is not None:
            self._counter(plan.rules[index], "never").inc()
            raise answer.hopeless(plan, index, prompt_tokens)

    def _refusal(self, charge: Charge, said: Told, decision: Decision, result: str) -> GatewayError:
        index = answer.lacking(charge.plan, charge.least, decision.levels)
        self._counter(charge.plan.rules[index], result).inc()
        return answer.refusal(charge.plan, said, charge.least, decision.levels, index)

    def _count_shadow(self, plan: Plan, bits: int, prefix: str) -> tuple[str, ...]:
        rules = [rule for i, rule in enumerate(plan.rules) if bits >> i & 1]
        for rule in rules:
            self._counter(rule, f"{prefix}shadow_refused").inc()
        return tuple(rule.name for rule in rules)

    def _price(self, model: str) -> Price:
        return self._prices.get(model, FREE)

    def _plan(
        self, key: tuple[object, ...], principal: Principal, model: str, route: str, address: str
    ) -> _Made:
        if len(self._plans) >= PLANS:
            self._plans.clear()
            self._local_plans.clear()
        who = Who(principal, model, route, address)
        plan = make_plan(self._config.rules, who, self._price(model), self._common)
        granted = [(rule.name, self._count_granted[rule.name]) for rule in plan.rules]
        self._plans[key] = made = _Made(plan, answer.told(plan), granted)
        return made

    def _counter(self, rule: Rule, result: str) -> Counter:
        return self._decisions.labels(rule.name, rule.unit, result)


class _Made(NamedTuple):
    """A plan, what can be said of it, and by rule's name who counts that it granted."""

    plan: Plan
    told: Told
    granted: Sequence[tuple[str, Callable[[], None]]]


class _Key:
    """What tells plans apart: only as much as the rules look at."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        dimensions = {dimension for rule in rules for dimension in rule.per}
        self._user = "user" in dimensions
        self._credential = "key" in dimensions
        self._address = "address" in dimensions
        self._route = any(rule.match.routes for rule in rules)

    def of(self, principal: Principal, model: str, route: str, address: str) -> tuple[object, ...]:
        return (
            principal.organisation,
            principal.tenant,
            principal.tier,
            model,
            principal.limits,
            self._user and principal.subject,
            self._credential and principal.key,
            self._route and route,
            self._address and address,
        )
