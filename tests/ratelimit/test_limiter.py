from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from core.errors import Forbidden, RateLimited, Unavailable
from core.metrics import Metrics
from core.principal import Principal, Quota
from core.section import Secret
from ratelimit.bucket import UNITS
from ratelimit.config import LimitsConfig, Match, PriceConfig, RedisConfig, RedisStoreConfig, Rule
from ratelimit.limiter import Limiter
from ratelimit.plan import Amounts, Plan, Who
from ratelimit.reservation import Reservation
from ratelimit.store import Charge, Decision, StoreUnavailable

ACME = Principal("acme", "bob", "free")


class FakeStore:
    """Grants, or fails with `failure`, and notes what it was told."""

    def __init__(self, failure: str = "") -> None:
        self.failure = failure
        self.reserved: list[tuple[Amounts, Amounts]] = []
        self.told: list[Amounts] = []
        self.settled: list[Amounts] = []

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def ready(self) -> str | None:
        return self.failure or None

    def tick(self) -> None: ...

    async def reserve(self, charge: Charge) -> Decision:
        if self.failure:
            raise StoreUnavailable(self.failure)
        self.reserved.append((charge.least, charge.asked))
        return Decision(True, await self.levels(charge.plan))

    def progress(self, charge: Charge, used: Amounts) -> None:
        self.told.append(used)

    def settle(self, charge: Charge, used: Amounts) -> None:
        self.settled.append(used)

    async def levels(self, plan: Plan) -> Sequence[int]:
        return [bucket.limit.capacity for bucket in plan.buckets]

    async def reset(self, plan: Plan) -> None: ...


def limiter(
    *rules: Rule, store: FakeStore | None = None, metrics: Metrics | None = None, **settings: Any
) -> Limiter:
    config = LimitsConfig(
        rules=rules, output_estimate_tokens=50, output_reserve_cap_tokens=200, **settings
    )
    return Limiter(config, metrics or Metrics.private(), lambda: 100.0, store=store)


async def reserve(
    limits: Limiter, prompt: int = 10, output: int | None = 20, principal: Principal = ACME
) -> Reservation:
    return await limits.reserve(
        principal,
        model="qwen3",
        prompt_tokens=prompt,
        max_output_tokens=output,
        route="/v1/completions",
        address="192.0.2.1",
    )


def decisions(metrics: Metrics, rule: str, result: str, unit: str = "requests") -> float:
    return metrics.value("headrace_limit_decisions_total", rule, unit, result)


TOKENS = Rule(name="tokens", unit="total_tokens", limit=100)


@pytest.mark.parametrize(("output", "reserved"), [(20, 30), (None, 60), (5000, 60), (0, 10)])
async def test_prompt_and_estimated_output_are_reserved(output: int | None, reserved: int) -> None:
    store = FakeStore()
    limits = limiter(Rule(name="tokens", unit="total_tokens", limit=1000), store=store)
    reservation = await reserve(limits, output=output)
    assert store.reserved == [((min(11, reserved) * UNITS,), (reserved * UNITS,))]
    assert reservation.reserved_tokens == reserved


async def test_the_estimate_is_learned_within_its_bound() -> None:
    limits = limiter(TOKENS)
    for _ in range(20):
        limits.estimates.learn("qwen3", 4, 4)
    assert (await reserve(limits, output=None)).reserved_tokens == 15
    for _ in range(500):
        limits.estimates.learn("qwen3", 0, 10_000)
    assert (await reserve(limits, output=None)).reserved_tokens == 210


async def test_without_a_matching_rule_nothing_is_asked() -> None:
    store = FakeStore()
    rule = Rule(name="r", limit=1, match=Match(tiers=("paid",)))
    limits = limiter(rule, store=store)
    with await reserve(limits) as reservation:
        reservation.settle(5, 0, 5)
    assert reservation.headers == ()
    assert store.reserved == store.settled == []


async def test_what_was_used_is_settled_in_each_unit() -> None:
    store = FakeStore()
    rules = [TOKENS, Rule(name="out", unit="output_tokens", limit=100)]
    rules += [Rule(name="money", unit="cost_units", limit=100)]
    prices = {"qwen3": PriceConfig(input=1, cached=0.5, output=2)}
    limits = limiter(*rules, store=store, prices=prices)
    with await reserve(limits) as reservation:
        reservation.settle(10, 4, 7)
        reservation.abandon()
        reservation.settle(99, 0, 99)
    assert store.settled == [(17 * UNITS, 7 * UNITS, 6 * 1000 + 4 * 500 + 7 * 2000)]
    assert limits.cost("qwen3", 10, 4, 7) == 0.022
    assert limits.cost("other", 10, 4, 7) is None


async def test_leaving_the_context_abandons() -> None:
    store = FakeStore()
    with await reserve(limiter(TOKENS, store=store)):
        pass
    assert store.settled == [(0,)]


async def test_an_estimate_alone_refuses_nothing() -> None:
    limits = limiter(Rule(name="tokens", unit="total_tokens", limit=30))
    reservation = await reserve(limits, prompt=10, output=5000)
    assert dict(reservation.headers)[b"x-ratelimit-remaining-tokens"] == b"0"
    reservation.settle(10, 0, 5)
    held = await reserve(limits, prompt=10, output=5000)
    assert dict(held.headers)[b"x-ratelimit-remaining-tokens"] == b"0"
    with pytest.raises(RateLimited):
        await reserve(limits, prompt=10, output=5000)


async def test_a_prompt_beyond_the_capacity_can_never_pass() -> None:
    store, metrics = FakeStore(), Metrics.private()
    with pytest.raises(Forbidden, match="never"):
        await reserve(limiter(TOKENS, store=store, metrics=metrics), prompt=101)
    assert store.reserved == []
    assert decisions(metrics, "tokens", "never", "total_tokens") == 1


async def test_a_refusal_carries_wait_headers_and_reason_and_is_counted() -> None:
    metrics = Metrics.private()
    limits = limiter(Rule(name="r", limit=2), metrics=metrics)
    await reserve(limits)
    await reserve(limits)
    with pytest.raises(RateLimited) as caught:
        await reserve(limits)
    assert caught.value.retry_after_s == 30.0
    assert caught.value.headers == (
        (b"x-ratelimit-limit-requests", b"2"),
        (b"x-ratelimit-remaining-requests", b"0"),
        (b"x-ratelimit-reset-requests", b"1m0s"),
        (b"ratelimit-policy", b'"r";q=2;w=60'),
        (b"ratelimit", b'"r";r=0;t=30'),
    )
    assert caught.value.details["limit"]["rule"] == "r"
    assert decisions(metrics, "r", "granted") == 2
    assert decisions(metrics, "r", "refused") == 1


async def test_shadow_rules_are_counted_and_told_to_the_operator_alone() -> None:
    metrics = Metrics.private()
    limits = limiter(Rule(name="quiet", limit=1, shadow=True), TOKENS, metrics=metrics)
    assert (await reserve(limits)).shadow_refusals == ()
    reservation = await reserve(limits)
    assert reservation.shadow_refusals == ("quiet",)
    assert not any(b"quiet" in value for _, value in reservation.headers)
    assert decisions(metrics, "quiet", "granted") == 1
    assert decisions(metrics, "quiet", "shadow_refused") == 1
    assert decisions(metrics, "tokens", "granted", "total_tokens") == 2


@pytest.mark.parametrize(
    ("per", "other", "shares"),
    [
        ("tenant", Principal("acme", "eve", "free"), True),
        ("tenant", Principal("other", "bob", "free"), False),
        ("user", Principal("acme", "eve", "free"), False),
        ("user", Principal("other", "bob", "free"), False),
        ("key", Principal("acme", "bob", "free", key="2"), False),
        ("organisation", Principal("acme", "bob", "free", organisation="big"), False),
        ("model", Principal("other", "bob", "free"), True),
        ("address", Principal("other", "bob", "free"), True),
    ],
)
async def test_who_shares_a_bucket(per: Any, other: Principal, shares: bool) -> None:
    limits = limiter(Rule(name="r", limit=1, per=(per,)))
    await reserve(limits)
    if shares:
        with pytest.raises(RateLimited):
            await reserve(limits, principal=other)
    else:
        await reserve(limits, principal=other)


async def test_a_hierarchy_is_charged_whole_or_not_at_all() -> None:
    limits = limiter(
        Rule(name="organisation", limit=3, per=("organisation",)),
        Rule(name="tenant", limit=2, per=("tenant",)),
        Rule(name="user", limit=1, per=("user",)),
    )

    def caller(tenant: str, user: str) -> Principal:
        return Principal(tenant, user, organisation="big")

    async def refused(principal: Principal) -> str:
        with pytest.raises(RateLimited) as caught:
            await reserve(limits, principal=principal)
        return str(caught.value.details["limit"]["rule"])

    await reserve(limits, principal=caller("one", "a"))
    assert await refused(caller("one", "a")) == "user"
    await reserve(limits, principal=caller("one", "b"))
    assert await refused(caller("one", "c")) == "tenant"
    await reserve(limits, principal=caller("two", "a"))
    assert await refused(caller("three", "a")) == "organisation"
    levels = await limits.levels(Who(caller("three", "a"), "qwen3"))
    assert [level // UNITS for _, level in levels] == [0, 2, 1]


async def test_a_caller_may_have_figures_of_its_own() -> None:
    limits = limiter(Rule(name="r", limit=1))
    more = Principal("acme", "bob", "free", limits=(("r", Quota(5, 3)),))
    for _ in range(3):
        await reserve(limits, principal=more)
    with pytest.raises(RateLimited):
        await reserve(limits, principal=more)
    with pytest.raises(RateLimited):  # the same bucket, for those without: it is empty
        await reserve(limits)


@pytest.mark.parametrize("unit", ["requests", "total_tokens", "concurrent"])
async def test_a_caller_may_be_allowed_nothing(unit: Any) -> None:
    limits = limiter(Rule(name="r", unit=unit, limit=1000))
    nothing = Principal("acme", "bob", "free", limits=(("r", Quota(0)),))
    with pytest.raises(Forbidden):
        await reserve(limits, principal=nothing)
    await reserve(limits)


async def test_operators_see_and_fill_buckets() -> None:
    limits = limiter(TOKENS)
    (await reserve(limits)).settle(10, 0, 30)
    who = Who(ACME, "qwen3")
    ((bucket, level),) = await limits.levels(who)
    assert (bucket.rule.name, bucket.key) == ("tokens", "tokens:total_tokens:acme")
    assert level == 60 * UNITS
    await limits.reset(who)
    assert [each for _, each in await limits.levels(who)] == [100 * UNITS]
    assert await limiter().levels(who) == []


async def test_without_the_store_local_rules_count_here() -> None:
    metrics, store = Metrics.private(), FakeStore("timeout")
    limits = limiter(
        Rule(name="local", limit=2),
        Rule(name="open", limit=1, on_store_failure="open"),
        Rule(name="quiet", limit=1, shadow=True),
        store=store,
        metrics=metrics,
    )
    assert limits.ready() == "timeout"
    first = await reserve(limits)
    assert first.degraded
    assert first.headers[-1] == (b"x-headrace-limits", b"degraded")
    (await reserve(limits)).abandon()
    assert (await reserve(limits)).shadow_refusals == ("quiet",)
    with pytest.raises(RateLimited) as caught:
        await reserve(limits)
    assert caught.value.headers[-1] == (b"x-headrace-limits", b"degraded")
    assert store.settled == []
    assert decisions(metrics, "local", "local_granted") == 3
    assert decisions(metrics, "local", "local_refused") == 1
    assert decisions(metrics, "open", "open") == 4
    assert decisions(metrics, "quiet", "local_shadow_refused") == 2


async def test_without_the_store_open_rules_let_pass() -> None:
    rule = Rule(name="open", limit=1, on_store_failure="open")
    limits = limiter(rule, store=FakeStore("refused"))
    for _ in range(3):
        assert (await reserve(limits)).headers == ((b"x-headrace-limits", b"degraded"),)


async def test_without_the_store_closed_rules_refuse() -> None:
    rules = [TOKENS, Rule(name="closed", limit=9, on_store_failure="closed")]
    limits = limiter(*rules, store=FakeStore("refused"))
    with pytest.raises(Unavailable) as caught:
        await reserve(limits)
    assert caught.value.retry_after_s == 1.0
    assert caught.value.status == 503
    assert caught.value.headers == ((b"x-headrace-limits", b"degraded"),)


async def test_a_shadow_is_never_closed() -> None:
    rule = Rule(name="quiet", limit=9, on_store_failure="closed", shadow=True)
    assert (await reserve(limiter(rule, store=FakeStore("refused")))).degraded


async def test_limits_without_rules_are_ready_whatever_the_store() -> None:
    assert limiter(store=FakeStore("refused")).ready() is None


@pytest.mark.parametrize(
    ("on_failure", "bridged"), [("local", True), ("open", True), ("closed", False)]
)
async def test_an_outage_that_is_bridged_is_no_reason_to_be_unready(
    on_failure: Any, bridged: bool
) -> None:
    store = FakeStore("refused")
    rules = Rule(name="r", limit=9, on_store_failure=on_failure)
    limits = limiter(rules, store=store)
    assert limits.ready() == "refused"  # never reached so far
    store.failure = ""
    assert limits.ready() is None
    store.failure = "timeout"
    assert limits.ready() == (None if bridged else "timeout")


async def test_what_was_counted_goes_on_under_another_configuration() -> None:
    kept = Rule(name="kept", limit=2)
    first = limiter(kept, Rule(name="dropped", limit=1))
    held = await reserve(first)

    def later(*rules: Rule) -> Limiter:
        return Limiter(LimitsConfig(rules=rules), Metrics.private(), lambda: 100.0, previous=first)

    second = later(kept, Rule(name="new", limit=1))
    assert second.store is first.store
    await reserve(second)
    for limits in (second, later(kept)):
        with pytest.raises(RateLimited):
            await reserve(limits)
    held.abandon()  # of the first one, after the change
    await reserve(later(kept))
    with pytest.raises(RateLimited):  # a greater limit fills the bucket faster, not at once
        await reserve(later(Rule(name="new", limit=5)))


async def test_what_was_learned_goes_on_too() -> None:
    first = limiter(TOKENS)
    first.estimates.learn("qwen3", 10, 20)
    second = Limiter(LimitsConfig(rules=(TOKENS,)), Metrics.private(), previous=first)
    assert second.estimates.tokens("qwen3", 10) == 20


def test_the_store_goes_on_while_its_settings_are_the_same(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("one")
    metrics = Metrics.private()

    def store(lease_s: float = 30.0, **settings: Any) -> LimitsConfig:
        url = RedisConfig(url="redis://127.0.0.1:1", password=Secret(f"file:{secret}"), **settings)
        return LimitsConfig(store=RedisStoreConfig(redis=url), rules=(TOKENS,), lease_s=lease_s)

    first = Limiter(store(), metrics)
    assert Limiter(store(), metrics, previous=first).store is first.store
    assert Limiter(store(deadline_s=0.5), metrics, previous=first).store is not first.store
    assert Limiter(store(lease_s=9.0), metrics, previous=first).store is not first.store
    assert Limiter(LimitsConfig(), metrics, previous=first).store is not first.store
    secret.write_text("two")
    assert Limiter(store(), metrics, previous=first).store is not first.store


async def test_a_store_that_was_reached_once_stays_reached() -> None:
    store = FakeStore()
    first = limiter(TOKENS, store=store)
    assert first.ready() is None
    store.failure = "circuit_open"
    second = Limiter(LimitsConfig(rules=(TOKENS,)), Metrics.private(), previous=first)
    assert second.ready() is None
