"""The limits on one request: reserve before it runs, settle or abandon when it has ended.

When the store fails, each rule goes by its `on_store_failure`. `local` counts in the memory of this
process with the same limits, from full buckets. Nothing is carried over in either direction, so the
bound is: during an outage of T minutes, n gateway processes together admit at most
n * (burst + T * rate) per bucket, and what the store's bucket holds once more when it is back.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from core.clock import Clock
from core.errors import Unavailable
from core.identity import identity
from core.metrics import Counter, Metrics
from ratelimit import answer
from ratelimit.answer import Headers
from ratelimit.bucket import UNITS
from ratelimit.config import LimitsConfig, RedisStoreConfig
from ratelimit.memory_store import MemoryStore
from ratelimit.plan import Plan, make_plan
from ratelimit.redis_store import RedisStore
from ratelimit.store import Charge, Decision, Store, StoreUnavailable

PLANS = 10_000
RETRY_CLOSED_S = 1.0


class Reservation:
    """What a request holds until it has ended. The first of `settle` and `abandon` counts.

    `headers` are the x-ratelimit fields for the answer, `reserved_tokens` the prompt and the
    estimated output (a smaller bucket was charged only what it holds when full).
    As a context manager it abandons on exit what was not settled.
    """

    __slots__ = ("_charge", "_store", "headers", "reserved_tokens")

    def __init__(
        self,
        reserved_tokens: int,
        headers: Headers = (),
        store: Store | None = None,
        charge: Charge | None = None,
    ) -> None:
        self.reserved_tokens = reserved_tokens
        self.headers = headers
        self._store = store
        self._charge = charge

    def __repr__(self) -> str:
        state = "ended or free" if self._charge is None else repr(self._charge)
        return f"<Reservation {self.reserved_tokens} tokens, {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._charge is not None:
            self.abandon()

    def settle(self, used_tokens: int) -> None:
        """The request ran and used so many tokens (prompt and output). Returns at once."""
        charge, self._charge = self._charge, None
        if charge is not None and self._store is not None:
            self._store.settle(charge, charge.plan.used(used_tokens))

    def abandon(self) -> None:
        """The request did not run: all is given back. Returns at once."""
        charge, self._charge = self._charge, None
        if charge is not None and self._store is not None:
            self._store.settle(charge, charge.plan.nothing)


class Limiter:
    """All limits of a gateway process. `clock` is monotonic and drives the local buckets.

    `store` takes the place of the one that the configuration names. `previous` is the limiter of an
    earlier configuration: what it has counted in this process goes on, by the names of the rules,
    and so does its store if it is the same one. Whoever has several limiters starts and closes each
    `store` once, instead of them.
    """

    def __init__(
        self,
        config: LimitsConfig,
        metrics: Metrics,
        clock: Clock = time.monotonic,
        store: Store | None = None,
        previous: Limiter | None = None,
    ) -> None:
        self._config = config
        self._local: MemoryStore = MemoryStore(clock) if previous is None else previous._local
        self.store: Store
        self._store_is = identity(config.store)
        self._reached = False
        if store is not None:
            self.store = store
        elif previous is not None and previous._store_is == self._store_is:
            self.store = previous.store
            self._reached = previous._reached
        elif isinstance(config.store, RedisStoreConfig):
            self.store = RedisStore(config.store.redis, metrics)
        else:
            self.store = self._local
        self._plans: dict[tuple[str, str, str], Plan] = {}
        self._local_plans: dict[Plan, Plan] = {}
        self._decisions = metrics.counter(
            "headrace_limit_decisions_total",
            "Decisions of the limits: granted or refused, by the store or (local_) without it; "
            "open or closed, as the rule asks for without it.",
            ("rule", "result"),
        )
        self._count_granted = {
            rule.name: self._counter(rule.name, "granted").inc for rule in config.rules
        }
        self._output_estimate = config.output_estimate_tokens
        self._output_cap = config.output_reserve_cap_tokens

    def __repr__(self) -> str:
        return f"<Limiter {len(self._config.rules)} rules, {self.store}>"

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
        reason = self.store.ready() if rules else None
        self._reached = self._reached or reason is None
        if self._reached and all(rule.on_store_failure != "closed" for rule in rules):
            return None
        return reason

    async def reserve(
        self,
        *,
        tenant: str,
        tier: str,
        model: str,
        prompt_tokens: int,
        max_output_tokens: int | None,
    ) -> Reservation:
        """Charge every bucket that concerns this request, or none.

        Raises RateLimited with the headers and the time to wait, or Unavailable when the store
        fails and a rule is `closed`.
        """
        plan = self._plans.get((tenant, tier, model)) or self._plan(tenant, tier, model)
        output = self._output_estimate if max_output_tokens is None else max_output_tokens
        tokens = prompt_tokens + min(output, self._output_cap)
        if not plan.buckets:
            return Reservation(tokens)
        if prompt_tokens > plan.largest_prompt:
            self._refuse_hopeless(plan, prompt_tokens)
        if 0 <= tokens <= plan.largest_prompt:
            # `plan.amounts`, short for the usual case.
            charge = Charge(plan, plan.spread((UNITS, tokens * UNITS)))
        else:
            charge = Charge(plan, plan.amounts(tokens))
        try:
            decision = await self.store.reserve(charge)
        except StoreUnavailable as error:
            return await self._without_store(plan, tokens, error)
        if not decision.granted:
            raise self._refusal(charge, decision, "refused")
        for rule in plan.rules:
            self._count_granted[rule.name]()
        return Reservation(tokens, answer.headers(plan, decision.levels), self.store, charge)

    async def _without_store(self, plan: Plan, tokens: int, error: StoreUnavailable) -> Reservation:
        """As the rules ask for: any `closed` refuses, `local` ones are counted here."""
        for rule in plan.rules:
            if rule.on_store_failure != "local":
                self._counter(rule.name, rule.on_store_failure).inc()
        if any(rule.on_store_failure == "closed" for rule in plan.rules):
            raise Unavailable(
                "The limits cannot be checked at the moment.",
                code="limits_unavailable",
                retry_after_s=RETRY_CLOSED_S,
            ) from error
        local = self._local_plans.get(plan)
        if local is None:
            local = self._local_plans[plan] = plan.narrowed("local")
        if not local.buckets:
            return Reservation(tokens)
        charge = Charge(local, local.amounts(tokens))
        decision = await self._local.reserve(charge)
        if not decision.granted:
            raise self._refusal(charge, decision, "local_refused")
        for rule in local.rules:
            self._counter(rule.name, "local_granted").inc()
        return Reservation(tokens, answer.headers(local, decision.levels), self._local, charge)

    def _refuse_hopeless(self, plan: Plan, prompt_tokens: int) -> None:
        bucket = plan.hopeless(prompt_tokens)
        if bucket is not None:
            self._counter(bucket.rule.name, "refused").inc()
            raise answer.hopeless(plan, bucket, prompt_tokens)

    def _refusal(self, charge: Charge, decision: Decision, result: str) -> Exception:
        index = answer.lacking(charge.plan, charge.amounts, decision.levels)
        self._counter(charge.plan.buckets[index].rule.name, result).inc()
        return answer.refusal(charge.plan, charge.amounts, decision.levels, index)

    def _plan(self, tenant: str, tier: str, model: str) -> Plan:
        if len(self._plans) >= PLANS:
            self._plans.clear()
            self._local_plans.clear()
        plan = make_plan(self._config.rules, tenant, tier, model)
        self._plans[tenant, tier, model] = plan
        return plan

    def _counter(self, rule: str, result: str) -> Counter:
        return self._decisions.labels(rule, result)
