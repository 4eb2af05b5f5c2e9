from __future__ import annotations

from typing import Any

import pytest
from charges import ACME, REQUESTS, STREAMS, TOKENS, plan_of

from core.principal import Principal, Quota
from ratelimit.bucket import MAX_TOKENS, UNITS, Limit
from ratelimit.config import Match, PriceConfig, Rule
from ratelimit.plan import Price, Who, make_plan, price_of

PRICE = Price(input=1000, cached=100, output=4000)


def keys(*rules: Rule, **who: Any) -> list[str]:
    return [bucket.key for bucket in plan_of(*rules, **who).buckets]


def test_a_rule_makes_a_bucket() -> None:
    plan = plan_of(REQUESTS, TOKENS, STREAMS)
    assert plan.tag == "acme"
    assert [bucket.key for bucket in plan.buckets] == [
        "requests:requests:acme",
        "tokens:total_tokens:acme",
        "streams:concurrent:acme",
    ]
    assert plan.buckets[1].limit == Limit(1000 * UNITS, 1000, 60)
    assert [bucket.concurrent for bucket in plan.buckets] == [False, False, True]
    assert plan.releases
    assert not plan_of(REQUESTS).releases


def test_burst_and_window_make_the_bucket() -> None:
    rule = Rule(name="r", unit="input_tokens", limit=10, burst=70, window="hour")
    assert plan_of(rule).buckets[0].limit == Limit(70 * UNITS, 10, 3600)


@pytest.mark.parametrize(
    ("per", "key"),
    [
        (("organisation",), "r:requests:@big"),
        (("tenant",), "r:requests:@big/acme"),
        (("tenant", "model"), "r:requests:@big/acme:m"),
        (("user",), "r:requests:@big/acme:bob"),
        (("tenant", "user"), "r:requests:@big/acme:bob"),
        (("key",), "r:requests:@big/acme:k1"),
        (("user", "address"), "r:requests:@big/acme:bob:10.0.0.1"),
    ],
)
def test_dimensions_make_the_key(per: tuple[Any, ...], key: str) -> None:
    caller = Principal("acme", "bob", organisation="big", key="k1")
    plan = plan_of(Rule(name="r", limit=1, per=per), principal=caller, address="10.0.0.1")
    assert plan.buckets[0].key == key
    assert plan.tag == "@big"


def test_a_tenant_without_an_organisation_is_one_by_itself() -> None:
    rule = Rule(name="r", limit=1, per=("organisation",))
    assert keys(rule) == ["r:requests:acme"]
    namesake = Principal("x", organisation="acme")
    assert keys(rule, principal=namesake) == ["r:requests:@acme"]


@pytest.mark.parametrize("per", [(), ("model",), ("address",), ("model", "address")])
def test_what_organisations_share_puts_everything_under_one_tag(per: tuple[Any, ...]) -> None:
    plan = plan_of(REQUESTS, Rule(name="all", limit=1, per=per), address="10.0.0.1")
    assert plan.tag == "*"
    assert plan.buckets[0].key == "requests:requests:acme"


def test_rules_are_filtered() -> None:
    rules = [
        REQUESTS,
        Rule(name="tenants", limit=1, match=Match(tenants=("acme",))),
        Rule(name="tiers", limit=1, match=Match(tiers=("free", "gold"))),
        Rule(name="models", limit=1, match=Match(models=("m",))),
        Rule(name="routes", limit=1, match=Match(routes=("/v1/completions",))),
    ]

    def names(principal: Principal, model: str, route: str) -> list[str]:
        return [rule.name for rule in make_plan(rules, Who(principal, model, route)).rules]

    assert names(ACME, "m", "/v1/completions") == [rule.name for rule in rules]
    assert names(Principal("other"), "llama", "/") == ["requests"]


def test_a_caller_may_have_figures_of_its_own() -> None:
    own = Principal(
        "acme", limits=(("tokens", Quota(5, 50)), ("streams", Quota(7)), ("no", Quota(1)))
    )
    plan = plan_of(REQUESTS, TOKENS, STREAMS, principal=own)
    assert [bucket.limit for bucket in plan.buckets] == [
        Limit(10 * UNITS, 10, 60),
        Limit(50 * UNITS, 5, 60),
        Limit(7 * UNITS, 7, 60),
    ]


def test_hostile_names_stay_inside_their_part_of_a_key() -> None:
    hostile = Principal("a}:b c", "*@/", organisation="o}{")
    rule = Rule(name="r", limit=1, per=("user", "model"))
    plan = plan_of(rule, principal=hostile, model="m d\n%")
    assert plan.tag == "@o%7D%7B"
    assert plan.buckets[0].key == "r:requests:@o%7D%7B/a%7D%3Ab%20c:%2A%40%2F:m%20d%0A%25"


@pytest.mark.parametrize(
    ("address", "whose"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::4", "2001%3Adb8%3A1%3A2%3A%3A%2F64"),
        ("unix", "unix"),
    ],
)
def test_an_address_stands_for_its_customer(address: str, whose: str) -> None:
    rule = Rule(name="r", limit=1, per=("address",))
    assert plan_of(rule, address=address).buckets[0].key.endswith(f":{whose}")


def test_amounts_are_in_the_units_of_the_buckets() -> None:
    rules = [REQUESTS, STREAMS, TOKENS]
    rules += [
        Rule(name=unit, unit=unit, limit=9)  # type: ignore[arg-type]
        for unit in ("input_tokens", "output_tokens", "cost_units")
    ]
    plan = make_plan(rules, Who(ACME, "m"), PRICE)
    cost = 60 * 1000 + 40 * 100 + 7 * 4000
    whole = (1, 1, 107, 100, 7)
    assert plan.amounts(100, 40, 7) == (*[count * UNITS for count in whole], cost)
    assert plan.nothing == (0,) * 6


def test_what_must_be_there_is_the_prompt_at_its_cheapest_and_one_token() -> None:
    costs = Rule(name="c", unit="cost_units", limit=1)
    plan = make_plan([TOKENS, costs], Who(ACME, "m"), PRICE)
    assert plan.least(100, 500) == (101 * UNITS, 100 * 100 + 4000)
    assert plan.least(100, 0) == (100 * UNITS, 100 * 100)


@pytest.mark.parametrize("count", [-1, MAX_TOKENS + 1, 10**30])
def test_counts_that_cannot_be_are_bounded(count: int) -> None:
    plan = make_plan([TOKENS], Who(ACME, "m"), PRICE)
    (amount,) = plan.amounts(count, count, count)
    assert amount == (0 if count < 0 else 2 * MAX_TOKENS * UNITS)
    assert plan.cost(MAX_TOKENS, 0, MAX_TOKENS) <= MAX_TOKENS * UNITS


def test_a_prompt_that_no_full_bucket_could_pay_for() -> None:
    inputs = Rule(name="i", unit="input_tokens", limit=50, shadow=True)
    costs = Rule(name="c", unit="cost_units", limit=1)
    plan = make_plan([REQUESTS, inputs, TOKENS], Who(ACME, "m"))
    assert plan.largest_prompt == 999
    assert plan.hopeless(plan.least(999, 5)) is None
    assert plan.hopeless(plan.least(1000, 0)) is None
    assert plan.hopeless(plan.least(1000, 5)) == 2
    assert make_plan([costs], Who(ACME, "m"), PRICE).largest_prompt == (UNITS - 4000) // 100
    free = make_plan([costs], Who(ACME, "m"))
    assert free.hopeless(free.least(10**9, 1)) is None


def test_narrowing_keeps_the_rules_of_one_failure_mode() -> None:
    plan = plan_of(REQUESTS, Rule(name="open", limit=1, on_store_failure="open")).narrowed("open")
    assert [bucket.key for bucket in plan.buckets] == ["open:requests:acme"]
    assert plan.tag == "acme"


def test_prices_are_whole_millionths_of_a_unit_per_token() -> None:
    assert price_of(PriceConfig(input=0.15, output=0.6)) == Price(150, 150, 600)
    assert price_of(PriceConfig(input=0.15, cached=0, output=0.001)) == Price(150, 0, 1)
    assert price_of(None) == Price(0, 0, 0)
