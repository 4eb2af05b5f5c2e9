from __future__ import annotations

from typing import Any

import pytest

from auth.access import Access
from auth.config import AccessRule, AuthConfig
from core.errors import ConfigError
from core.loading import convert
from core.principal import Principal

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ANNA = Principal("acme", tier="gold", groups=frozenset({"ml", "ops"}))


def access(*rules: dict[str, Any]) -> Access:
    return Access([AccessRule(**rule) for rule in rules])


def missing(
    given: Access, principal: Principal = ANNA, model: str = "m", route: str = CHAT
) -> str | None:
    return given.missing(principal, (model,), route)


def test_a_model_without_a_rule_is_open_to_all() -> None:
    given = access({"models": ("other",), "tiers": ("none",)})
    assert missing(given) is None
    assert missing(given, model="other") == "the tier none"


@pytest.mark.parametrize(
    ("rule", "lack"),
    [
        ({"tenants": ("acme", "b")}, None),
        ({"tiers": ("gold",)}, None),
        ({"groups": ("x", "ml")}, None),
        ({"tenants": ("acme",), "tiers": ("gold",), "groups": ("ops",)}, None),
        ({"tenants": ("b",)}, "a tenant that it is open to"),
        ({"tiers": ("silver", "bronze")}, "the tier silver or bronze"),
        ({"groups": ("x", "y")}, "the group x or y"),
        ({"tenants": ("acme",), "tiers": ("silver",)}, "the tier silver"),
        ({"tiers": ("silver",), "groups": ("x",)}, "the tier silver and the group x"),
    ],
)
def test_whom_a_rule_lets_in(rule: dict[str, Any], lack: str | None) -> None:
    assert missing(access(rule)) == lack
    assert missing(access(rule | {"models": ("m", "n")})) == lack


def test_one_rule_is_enough() -> None:
    rules = ({"tiers": ("silver",)}, {"groups": ("x",)}, {"tiers": ("silver",)})
    assert missing(access(*rules, {"tenants": ("acme",)})) is None
    assert missing(access(*rules)) == "the tier silver, or the group x"


def test_other_tenants_are_not_named() -> None:
    assert "rival" not in (missing(access({"tenants": ("rival",)})) or "")


def test_a_rule_about_an_alias_is_about_the_model() -> None:
    given = access({"models": ("alias",), "tiers": ("silver",)})
    assert given.missing(ANNA, ("m", "alias"), CHAT) == "the tier silver"


def test_rules_about_routes() -> None:
    given = access({"routes": (COMPLETIONS,), "tiers": ("silver",)})
    assert missing(given) is None
    assert missing(given, route=COMPLETIONS) == "the tier silver"
    assert given.shows(ANNA, ("m",))


def test_what_cannot_be_used_at_any_route_is_not_shown() -> None:
    given = access({"models": ("m",), "tiers": ("silver",)})
    assert not given.shows(ANNA, ("m",))
    assert given.shows(Principal("b", tier="silver"), ("m",))
    one_route = access(
        {"tiers": ("silver",)}, {"routes": (CHAT,), "models": ("m",), "tenants": ("acme",)}
    )
    assert one_route.shows(ANNA, ("m",))
    assert not one_route.shows(ANNA, ("n",))


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"models": ["m"]}, r"\$\.rules\[0\]: expected `tenants`, `tiers` or `groups`"),
        ({"tiers": ["a"], "routes": ["v1"]}, r"\$\.rules\[0\]\.routes\[0\]: expected a path"),
    ],
)
def test_rules_that_are_refused(rule: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        convert({"rules": [rule], "api_keys": {"file": "k"}}, AuthConfig, "/")
