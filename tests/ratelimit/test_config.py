from __future__ import annotations

import pytest

from core.errors import ConfigError
from core.loading import convert
from ratelimit.config import LimitsConfig, RedisStoreConfig, Rule

RULE = {"name": "a", "requests_per_minute": 5}


def load(node: object) -> LimitsConfig:
    return convert(node, LimitsConfig, "/etc/headrace")


def test_nothing_is_needed() -> None:
    config = load({})
    assert config.store == "memory"
    assert config.rules == ()


def test_everything_is_read() -> None:
    config = load(
        {
            "store": {
                "redis": {
                    "url": "rediss://limits@cache.example:6380/2",
                    "password": "env:REDIS_PASSWORD",
                    "ca": "ca.pem",
                    "deadline_s": 0.05,
                }
            },
            "rules": [
                RULE,
                {
                    "name": "free-tier",
                    "tokens_per_minute": 1000,
                    "tokens_burst": 5000,
                    "per": ["tenant"],
                    "tiers": ["free"],
                    "models": ["qwen3"],
                    "on_store_failure": "closed",
                    "lease_s": 60,
                },
            ],
        }
    )
    assert isinstance(config.store, RedisStoreConfig)
    assert config.store.redis.ca == "/etc/headrace/ca.pem"
    assert config.store.redis.deadline_s == 0.05
    assert [rule.on_store_failure for rule in config.rules] == ["local", "closed"]
    assert config.rules[1].per == ("tenant",)


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"rules": [{"name": "a"}]}, "$.rules[0]: a rule needs requests_per_minute"),
        ({"rules": [{**RULE, "name": "a b"}]}, "$.rules[0].name: expected 1 to 64"),
        ({"rules": [RULE, RULE]}, "two rules have the same name: a"),
        ({"rules": [{**RULE, "tokens_burst": 5}]}, "means nothing without tokens_per_minute"),
        ({"rules": [{**RULE, "requests_burst": 7201}]}, "at most one day's worth"),
        ({"rules": [{**RULE, "per": ["model"]}]}, "$.rules[0].per: expected [tenant]"),
        ({"rules": [{**RULE, "requests_per_minute": 0}]}, "$.rules[0].requests_per_minute"),
        ({"rules": [{**RULE, "on_store_failure": "lokal"}]}, "local"),
        ({"store": "memroy"}, "memory"),
        ({"store": {"redis": {"url": "http://x"}}}, "$.store.redis: `url`: expected redis://"),
        ({"store": {"redis": {"url": "redis://x/a"}}}, "database is a number"),
        ({"store": {"redis": {"url": "redis://x", "ca": "a.pem"}}}, "needs a rediss:// url"),
        ({"store": {"redis": {"url": "redis://x", "deadline_s": 0}}}, "$.store.redis.deadline_s"),
    ],
)
def test_faults_are_named(node: object, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(node)
    assert words in str(caught.value)


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        load({"store": {"redis": {"url": "redis://:hunter2@cache"}}})
    assert "password" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_rule_made_in_code_is_checked_too() -> None:
    with pytest.raises(ValueError, match="a rule needs"):
        Rule(name="x")
