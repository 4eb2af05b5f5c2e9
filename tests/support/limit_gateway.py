"""The limits of one gateway process, on a real server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from charges import ACME, plan_of

from core.errors import RateLimited
from core.metrics import Metrics
from core.principal import Principal
from ratelimit.bucket import UNITS
from ratelimit.config import LimitsConfig, RedisConfig, RedisStoreConfig, Rule
from ratelimit.limiter import Limiter
from ratelimit.plan import Plan
from ratelimit.redis_reply import command
from ratelimit.redis_store import RedisStore
from ratelimit.redis_wire import Wire
from ratelimit.reservation import Reservation

HUNDRED = Rule(name="hundred", limit=100)
TOKENS = Rule(name="tokens", unit="total_tokens", limit=1000)
STEADY = Rule(name="tokens", unit="total_tokens", limit=150, burst=1000, window="day")
STREAMS = Rule(name="streams", unit="concurrent", limit=3)
LONG_S = 0.9
"""A deadline that a busy test machine does not miss."""


class Gateway:
    """A Limiter on the server at `url`, as one gateway process has it."""

    def __init__(
        self,
        url: str,
        *rules: Rule,
        deadline_s: float = LONG_S,
        lease_s: float = 30.0,
        **more: Any,
    ) -> None:
        self.rules = rules
        self.metrics = Metrics.private()
        store = RedisStoreConfig(redis=RedisConfig(url=url, deadline_s=deadline_s, **more))
        config = LimitsConfig(store=store, rules=rules, lease_s=lease_s)
        self.limiter = Limiter(config, self.metrics)

    @property
    def store(self) -> RedisStore:
        store = self.limiter.store.store
        assert isinstance(store, RedisStore)
        return store

    @property
    def wire(self) -> Wire:
        wire: Any = self.store._routes.wire_of(0)
        return wire  # type: ignore[no-any-return]

    async def reserve(
        self, prompt: int = 10, output: int = 0, principal: Principal = ACME
    ) -> Reservation:
        return await self.limiter.reserve(
            principal, model="m", prompt_tokens=prompt, max_output_tokens=output
        )

    async def granted(self, prompt: int = 10, **more: Any) -> bool:
        try:
            await self.reserve(prompt, **more)
        except RateLimited:
            return False
        return True

    def report(self, after_s: float = 0.0) -> None:
        """As the timer of the leases does: all that run, or those that did not for so long."""
        leases = self.limiter.store
        for reservation in list(leases._due_at):
            now = reservation._reported_at + leases._renew_s if not after_s else leases._clock()
            reservation.report(now, after_s or leases._renew_s)

    def forget(self, reservation: Reservation) -> None:
        """It neither reports nor ends any more."""
        del self.limiter.store._due_at[reservation]

    def die(self) -> None:
        """Nothing of this process is sent any more."""
        self.limiter.store._due_at.clear()
        self.wire.drop("killed")

    async def flushed(self) -> None:
        """Until all that was told so far has arrived."""
        await self.wire.call(command(b"PING"))

    async def levels(self, plan: Plan | None = None) -> list[float]:
        """What the rules' buckets hold in Redis, in tokens, but for what flows in meanwhile."""
        await self.flushed()
        levels: Sequence[int] = await self.store.levels(plan or plan_of(*self.rules))
        return [round(level / UNITS, 1) for level in levels]

    async def level(self, rule: Rule = TOKENS) -> float:
        return (await self.levels(plan_of(rule)))[0]

    def failures(self, kind: str) -> float:
        return self.metrics.value("headrace_limit_store_failures_total", kind)

    def decisions(self, rule: Rule, result: str) -> float:
        return self.metrics.value("headrace_limit_decisions_total", rule.name, rule.unit, result)
