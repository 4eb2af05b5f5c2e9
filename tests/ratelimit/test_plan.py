from __future__ import annotations

from ratelimit.bucket import UNITS, Limit
from ratelimit.config import Rule
from ratelimit.plan import make_plan

BOTH = Rule(name="both", requests_per_minute=10, tokens_per_minute=100)


def test_a_rule_makes_a_bucket_of_each_kind() -> None:
    plan = make_plan([BOTH], "acme", "", "qwen3")
    assert [bucket.key for bucket in plan.buckets] == ["both:requests:qwen3", "both:tokens:qwen3"]
    assert plan.buckets[1].limit == Limit(100 * UNITS, 100)
    assert plan.buckets[1].limit_header == b"100"
    assert plan.lease_us == 300_000_000


def test_a_burst_is_the_size() -> None:
    rule = Rule(name="r", tokens_per_minute=10, tokens_burst=70)
    assert make_plan([rule], "t", "", "m").buckets[0].limit == Limit(70 * UNITS, 10)


def test_rules_are_filtered() -> None:
    rules = [
        BOTH,
        Rule(name="tenants", requests_per_minute=1, tenants=("acme",)),
        Rule(name="tiers", requests_per_minute=1, tiers=("free", "trial")),
        Rule(name="models", requests_per_minute=1, models=("qwen3",)),
    ]

    def names(tenant: str, tier: str, model: str) -> list[str]:
        return [rule.name for rule in make_plan(rules, tenant, tier, model).rules]

    assert names("acme", "trial", "qwen3") == ["both", "tenants", "tiers", "models"]
    assert names("other", "paid", "llama") == ["both"]


def test_models_share_a_bucket_per_tenant_only() -> None:
    rule = Rule(name="r", requests_per_minute=1, per=("tenant",))
    one, two = (make_plan([rule], "t", "", model) for model in ("a", "b"))
    assert one.buckets[0].key == two.buckets[0].key == "r:requests:"


def test_hostile_names_stay_inside_their_part_of_a_key() -> None:
    plan = make_plan([BOTH], "a}:b c", "", "m d\n%")
    assert plan.tenant == "a%7D%3Ab%20c"
    assert plan.buckets[0].key == "both:requests:m%20d%0A%25"


def test_an_estimate_is_cut_to_what_a_full_bucket_has() -> None:
    plan = make_plan([BOTH], "t", "", "m")
    assert plan.amounts(40) == (UNITS, 40 * UNITS)
    assert plan.amounts(4000) == (UNITS, 100 * UNITS)


def test_a_prompt_is_not_cut() -> None:
    plan = make_plan([BOTH], "t", "", "m")
    assert plan.hopeless(100) is None
    assert plan.hopeless(101) is plan.buckets[1]


def test_what_was_used_is_charged_in_full() -> None:
    assert make_plan([BOTH], "t", "", "m").used(4000) == (UNITS, 4000 * UNITS)


def test_narrowing_keeps_the_rules_of_one_failure_mode() -> None:
    rules = [BOTH, Rule(name="open", requests_per_minute=1, on_store_failure="open")]
    plan = make_plan(rules, "a b", "", "m").narrowed("open")
    assert [bucket.key for bucket in plan.buckets] == ["open:requests:m"]
    assert plan.tenant == "a%20b"
