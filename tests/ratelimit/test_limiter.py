from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core.errors import RateLimited, Unavailable
from core.metrics import Metrics
from core.section import Secret
from ratelimit.bucket import UNITS
from ratelimit.config import LimitsConfig, RedisConfig, RedisStoreConfig, Rule
from ratelimit.limiter import Limiter, Reservation
from ratelimit.plan import Amounts
from ratelimit.store import Charge, Decision, StoreUnavailable


class FakeStore:
    """Grants, or fails with `failure`, and notes what it was told."""

    def __init__(self, failure: str = "") -> None:
        self.failure = failure
        self.reserved: list[Amounts] = []
        self.settled: list[Amounts] = []

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def ready(self) -> str | None:
        return self.failure or None

    async def reserve(self, charge: Charge) -> Decision:
        if self.failure:
            raise StoreUnavailable(self.failure)
        self.reserved.append(charge.amounts)
        return Decision(True, [bucket.limit.capacity for bucket in charge.plan.buckets])

    def settle(self, charge: Charge, used: Amounts) -> None:
        self.settled.append(used)


def limiter(
    *rules: Rule, store: FakeStore | None = None, metrics: Metrics | None = None
) -> Limiter:
    config = LimitsConfig(rules=rules, output_estimate_tokens=50, output_reserve_cap_tokens=200)
    return Limiter(config, metrics or Metrics.private(), lambda: 100.0, store)


async def reserve(limits: Limiter, prompt: int = 10, output: int | None = 20) -> Reservation:
    return await limits.reserve(
        tenant="acme", tier="free", model="qwen3", prompt_tokens=prompt, max_output_tokens=output
    )


TOKENS = Rule(name="tokens", tokens_per_minute=100)


@pytest.mark.parametrize(("output", "reserved"), [(20, 30), (None, 60), (5000, 210), (0, 10)])
async def test_prompt_and_estimated_output_are_reserved(output: int | None, reserved: int) -> None:
    store = FakeStore()
    limits = limiter(Rule(name="tokens", tokens_per_minute=1000), store=store)
    reservation = await reserve(limits, output=output)
    assert store.reserved == [(reserved * UNITS,)]
    assert reservation.reserved_tokens == reserved


async def test_without_a_matching_rule_nothing_is_asked() -> None:
    store = FakeStore()
    limits = limiter(Rule(name="r", requests_per_minute=1, tiers=("paid",)), store=store)
    with await reserve(limits) as reservation:
        reservation.settle(5)
    assert reservation.headers == ()
    assert store.reserved == store.settled == []


async def test_the_first_end_counts() -> None:
    store = FakeStore()
    limits = limiter(TOKENS, store=store)
    with await reserve(limits) as reservation:
        reservation.settle(25)
        reservation.abandon()
        reservation.settle(99)
    assert store.settled == [(25 * UNITS,)]


async def test_leaving_the_context_abandons() -> None:
    store = FakeStore()
    with await reserve(limiter(TOKENS, store=store)):
        pass
    assert store.settled == [(0,)]


async def test_a_full_bucket_never_refuses_because_of_an_estimate() -> None:
    limits = limiter(TOKENS)
    reservation = await reserve(limits, prompt=10, output=5000)
    assert dict(reservation.headers)[b"x-ratelimit-remaining-tokens"] == b"0"
    reservation.settle(15)
    assert (await reserve(limits, prompt=80, output=0)).headers[1][1] == b"5"


async def test_a_prompt_beyond_the_capacity_can_never_pass() -> None:
    store = FakeStore()
    with pytest.raises(RateLimited) as caught:
        await reserve(limiter(TOKENS, store=store), prompt=101)
    assert caught.value.retry_after_s is None
    assert "never" in caught.value.message
    assert store.reserved == []


async def test_a_refusal_carries_wait_and_headers_and_is_counted() -> None:
    metrics = Metrics.private()
    limits = limiter(Rule(name="r", requests_per_minute=2), metrics=metrics)
    await reserve(limits)
    await reserve(limits)
    with pytest.raises(RateLimited) as caught:
        await reserve(limits)
    assert caught.value.retry_after_s == 30.0
    assert caught.value.headers == (
        (b"x-ratelimit-limit-requests", b"2"),
        (b"x-ratelimit-remaining-requests", b"0"),
        (b"x-ratelimit-reset-requests", b"1m0s"),
    )
    assert metrics.value("headrace_limit_decisions_total", "r", "granted") == 2
    assert metrics.value("headrace_limit_decisions_total", "r", "refused") == 1


async def test_tenants_do_not_share() -> None:
    limits = limiter(Rule(name="r", requests_per_minute=1))
    for tenant in ("a", "b"):
        await limits.reserve(
            tenant=tenant, tier="", model="m", prompt_tokens=1, max_output_tokens=1
        )


async def test_without_the_store_local_rules_count_here() -> None:
    metrics, store = Metrics.private(), FakeStore("timeout")
    limits = limiter(
        Rule(name="local", requests_per_minute=2),
        Rule(name="open", requests_per_minute=1, on_store_failure="open"),
        store=store,
        metrics=metrics,
    )
    assert limits.ready() == "timeout"
    await reserve(limits)
    (await reserve(limits)).abandon()
    await reserve(limits)
    with pytest.raises(RateLimited):
        await reserve(limits)
    assert store.settled == []
    assert metrics.value("headrace_limit_decisions_total", "local", "local_granted") == 3
    assert metrics.value("headrace_limit_decisions_total", "local", "local_refused") == 1
    assert metrics.value("headrace_limit_decisions_total", "open", "open") == 4


async def test_without_the_store_open_rules_let_pass() -> None:
    rule = Rule(name="open", requests_per_minute=1, on_store_failure="open")
    limits = limiter(rule, store=FakeStore("refused"))
    for _ in range(3):
        assert (await reserve(limits)).headers == ()


async def test_without_the_store_closed_rules_refuse() -> None:
    rules = [TOKENS, Rule(name="closed", requests_per_minute=9, on_store_failure="closed")]
    limits = limiter(*rules, store=FakeStore("refused"))
    with pytest.raises(Unavailable) as caught:
        await reserve(limits)
    assert caught.value.retry_after_s == 1.0
    assert caught.value.status == 503


async def test_limits_without_rules_are_ready_whatever_the_store() -> None:
    assert limiter(store=FakeStore("refused")).ready() is None


@pytest.mark.parametrize(
    ("on_failure", "bridged"), [("local", True), ("open", True), ("closed", False)]
)
async def test_an_outage_that_is_bridged_is_no_reason_to_be_unready(
    on_failure: Any, bridged: bool
) -> None:
    store = FakeStore("refused")
    rules = Rule(name="r", requests_per_minute=9, on_store_failure=on_failure)
    limits = limiter(rules, store=store)
    assert limits.ready() == "refused"  # never reached so far
    store.failure = ""
    assert limits.ready() is None
    store.failure = "timeout"
    assert limits.ready() == (None if bridged else "timeout")


async def test_what_was_counted_goes_on_under_another_configuration() -> None:
    kept = Rule(name="kept", requests_per_minute=2)
    first = limiter(kept, Rule(name="dropped", requests_per_minute=1))
    held = await reserve(first)

    def later(*rules: Rule) -> Limiter:
        return Limiter(LimitsConfig(rules=rules), Metrics.private(), lambda: 100.0, previous=first)

    second = later(kept, Rule(name="new", requests_per_minute=1))
    assert second.store is first.store
    await reserve(second)
    for limits in (second, later(kept)):
        with pytest.raises(RateLimited):
            await reserve(limits)
    held.abandon()  # of the first one, after the change
    await reserve(later(kept))
    with pytest.raises(RateLimited):  # a greater limit fills the bucket faster, not at once
        await reserve(later(Rule(name="new", requests_per_minute=5)))


def test_the_store_goes_on_while_its_settings_are_the_same(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("one")
    metrics = Metrics.private()

    def store(**settings: Any) -> LimitsConfig:
        url = RedisConfig(url="redis://127.0.0.1:1", password=Secret(f"file:{secret}"), **settings)
        return LimitsConfig(store=RedisStoreConfig(redis=url), rules=(TOKENS,))

    first = Limiter(store(), metrics)
    assert Limiter(store(), metrics, previous=first).store is first.store
    assert Limiter(store(deadline_s=0.5), metrics, previous=first).store is not first.store
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
