from __future__ import annotations

import pytest

from core.errors import ConfigError
from core.loading import convert
from ratelimit.config import LimitsConfig, PriceConfig, RedisStoreConfig, Rule

RULE = {"name": "a", "limit": 5}
URL = {"url": "redis://x"}


def load(node: object) -> LimitsConfig:
    return convert(node, LimitsConfig, "/etc/headrace")


def redis(**settings: object) -> object:
    return {"store": {"redis": {**URL, **settings}}}


def rule(**settings: object) -> object:
    return {"rules": [{**RULE, **settings}]}


def test_nothing_is_needed() -> None:
    config = load({})
    assert config.store == "memory"
    assert config.rules == ()
    assert load({"rules": [RULE]}).rules == (Rule(name="a", limit=5),)


def test_everything_is_read() -> None:
    config = load(
        {
            "store": {
                "redis": {
                    "url": "rediss://limits@primary/2",
                    "password": "env:REDIS_PASSWORD",
                    "sentinels": ["10.0.0.1:26379", "[::1]:26379"],
                    "sentinel_password": "env:SENTINEL_PASSWORD",
                    "ca": "ca.pem",
                    "deadline_s": 0.05,
                }
            },
            "lease_s": 60,
            "prices": {"qwen3": {"input": 0.15, "cached": 0.015, "output": 0.6}},
            "rules": [
                RULE,
                {
                    "name": "free-tier",
                    "unit": "output_tokens",
                    "limit": 1000,
                    "window": "day",
                    "burst": 5000,
                    "per": ["organisation", "model"],
                    "match": {
                        "tiers": ["free"],
                        "models": ["qwen3"],
                        "routes": ["/v1/completions"],
                    },
                    "on_store_failure": "closed",
                    "shadow": True,
                },
                {"name": "money", "unit": "cost_units", "limit": 9, "per": ["user"]},
            ],
        }
    )
    assert isinstance(config.store, RedisStoreConfig)
    assert config.store.redis.ca == "/etc/headrace/ca.pem"
    assert config.store.redis.deadline_s == 0.05
    assert [each.on_store_failure for each in config.rules] == ["local", "closed", "local"]
    assert config.rules[1].per == ("organisation", "model")
    assert config.rules[1].match.tiers == ("free",)
    assert config.prices["qwen3"] == PriceConfig(input=0.15, cached=0.015, output=0.6)


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"rules": [{"name": "a"}]}, "$.rules[0]: missing key `limit`"),
        (rule(requests_per_minute=5), "$.rules[0]: unknown key `requests_per_minute`"),
        (rule(name="a b"), "$.rules[0].name: expected 1 to 64"),
        ({"rules": [RULE, RULE]}, "two rules have the same name: a"),
        (rule(burst=50_401), "$.rules[0].burst: expected at most what flows in within a week"),
        (rule(unit="concurrent", burst=5), "$.rules[0].burst: means nothing for concurrent"),
        (rule(unit="tokens"), "total_tokens"),
        (rule(window="week"), "day"),
        (rule(per=["tenant", "tenant"]), "$.rules[0].per: names something twice"),
        (rule(per=["tennant"]), "did you mean `tenant`"),
        (rule(limit=0), "$.rules[0].limit"),
        (rule(on_store_failure="lokal"), "local"),
        (rule(unit="cost_units"), "$.rules[0].unit: cost_units need `limits.prices`"),
        ({"prices": {"m": {"input": 0.0001, "output": 1}}}, "$.prices.m.input: expected at most"),
        ({"store": "memroy"}, "memory"),
        (redis(url="http://x"), "$.store.redis: `url`: expected redis://"),
        (redis(url="redis://x/a"), "database is a number"),
        (redis(ca="a.pem"), "$.store.redis.ca: needs a rediss:// url"),
        (redis(deadline_s=0), "$.store.redis.deadline_s"),
        (
            redis(sentinels=["a:1"], cluster=True),
            "$.store.redis.cluster: a cluster has no Sentinels",
        ),
        (redis(sentinels=["a"]), "$.store.redis.sentinels[0]: expected host:port"),
        (redis(nodes=["a:1"]), "$.store.redis.nodes: means nothing without `cluster: true`"),
        (redis(sentinel_password="env:X"), "$.store.redis.sentinel_password: means nothing"),
        (redis(url="unix:///s", cluster=True), "$.store.redis.url: a Unix socket is one server"),
        (redis(url="redis://x/1", cluster=True), "$.store.redis.url: a cluster has no other"),
    ],
)
def test_faults_are_named(node: object, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(node)
    assert words in str(caught.value)


@pytest.mark.parametrize("per", [[], ["model"], ["address"], ["address", "model"]])
def test_what_a_cluster_cannot_hold_together_is_refused(per: list[str]) -> None:
    shared = {"rules": [RULE, {"name": "b", "limit": 1, "per": per}]}
    assert load({**shared, "store": {"redis": URL}}).rules[1].is_common
    with pytest.raises(ConfigError, match=r"\$\.rules\[1\]\.per: in a cluster"):
        load({**shared, "store": {"redis": {**URL, "cluster": True}}})


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        load(redis(url="redis://:hunter2@cache"))
    assert "password" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_rule_made_in_code_is_checked_too() -> None:
    with pytest.raises(ValueError, match="means nothing"):
        Rule(name="x", limit=1, unit="concurrent", burst=1)
