from __future__ import annotations

from typing import Any

import pytest

from auth.claims import check_required, principal_of
from auth.config import ClaimsConfig
from auth.token import TokenRefused
from core.principal import Principal, Quota


def test_the_subject_is_the_tenant_by_default() -> None:
    assert principal_of({"sub": "alice"}, ClaimsConfig()) == Principal("alice", "alice")


def test_every_part_is_mapped() -> None:
    mapping = ClaimsConfig(tenant="realm.org", tier="plan", models="models", tenant_prefix="x:")
    claims = {"sub": "alice", "realm": {"org": 17}, "plan": "gold", "models": ["a", "b"]}
    assert principal_of(claims, mapping) == Principal("x:17", "alice", "gold", frozenset("ab"))


def test_a_name_with_dots_is_looked_up_as_it_stands_first() -> None:
    mapping = ClaimsConfig(tenant="https://a.example/org")
    claims = {"https://a.example/org": "acme", "https://a": {"example/org": "evil"}}
    assert principal_of(claims, mapping).tenant == "acme"


def test_the_fallback_names_the_tenant() -> None:
    mapping = ClaimsConfig(tenant="org", tenant_fallback="sub")
    assert principal_of({"sub": "alice"}, mapping).tenant == "alice"
    assert principal_of({"sub": "alice", "org": "acme"}, mapping).tenant == "acme"


@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"org": None},
        {"org": ""},
        {"org": ["acme"]},
        {"org": {"id": "acme"}},
        {"org": True},
        {"org": 1.5},
        {"org": "a\nb"},
        {"org": "a" * 257},
        {"org": "acme", "sub": ["alice"]},
        {"org": "acme", "tier": 1.5},
        {"org": "acme", "models": None},
        {"org": "acme", "models": 5},
        {"org": "acme", "models": {"a": 1}},
        {"org": "acme", "models": ["a", 5]},
        {"org": "acme", "models": ["a"] * 1025},
    ],
)
def test_claims_that_are_refused(claims: dict[str, Any]) -> None:
    with pytest.raises(TokenRefused):
        principal_of(claims, ClaimsConfig(tenant="org", tier="tier", models="models"))


@pytest.mark.parametrize(
    ("value", "models"),
    [
        (["a", "b"], {"a", "b"}),
        ("a b", {"a", "b"}),
        ("a,b", {"a", "b"}),
        (" a , b ", {"a", "b"}),
        ("", set()),
        ([], set()),
    ],
)
def test_models(value: object, models: set[str]) -> None:
    principal = principal_of({"sub": "alice", "m": value}, ClaimsConfig(models="m"))
    assert principal.models == models
    assert not principal.may_use("c")


def test_a_token_that_names_no_models() -> None:
    assert principal_of({"sub": "a"}, ClaimsConfig(models="m")).may_use("any")
    limited = principal_of({"sub": "a"}, ClaimsConfig(models="m", models_when_absent="none"))
    assert not limited.may_use("any")


def test_organisation_and_groups() -> None:
    mapping = ClaimsConfig(organisation="org", groups="realm.roles")
    claims = {"sub": "a", "org": "group", "realm": {"roles": ["ml", "ops"]}}
    principal = principal_of(claims, mapping)
    assert principal.organisation == "group"
    assert principal.groups == {"ml", "ops"}
    assert principal_of({"sub": "a"}, mapping).groups == frozenset()


def test_a_priority() -> None:
    mapping = ClaimsConfig(priority="qos.rank")

    def priority(value: object) -> int:
        return principal_of({"sub": "a", "qos": {"rank": value}}, mapping).priority

    assert [priority(value) for value in (-1000, 0, 7, 1000, None)] == [-1000, 0, 7, 1000, 0]
    assert principal_of({"sub": "a"}, mapping).priority == 0
    assert principal_of({"sub": "a", "priority": 5}, ClaimsConfig()).priority == 0
    for value in (1001, -1001, 10**30, 1.0, "1", True, [], {}):
        with pytest.raises(TokenRefused, match="rank is not a priority"):
            priority(value)


def test_own_limits() -> None:
    mapping = ClaimsConfig(limits="plan.limits")

    def limits(value: object) -> tuple[tuple[str, Quota], ...]:
        return principal_of({"sub": "a", "plan": {"limits": value}}, mapping).limits

    assert limits({"tokens": {"limit": 5, "burst": 9}, "requests": 100}) == (
        ("requests", Quota(100)),
        ("tokens", Quota(5, 9)),
    )
    assert limits({"tokens": {"limit": 5}}) == (("tokens", Quota(5)),)
    assert limits({"none": 0}) == (("none", Quota(0)),)
    assert limits({}) == limits(None) == ()
    assert principal_of({"sub": "a"}, mapping).limits == ()


@pytest.mark.parametrize(
    "value",
    [
        [],
        "requests=5",
        {"r": -1},
        {"r": 1.5},
        {"r": True},
        {"r": "5"},
        {"r": None},
        {"r": 10**10},
        {"r": {}},
        {"r": {"burst": 5}},
        {"r": {"limit": 5, "burst": -1}},
        {"r": {"limit": 5, "window": "day"}},
        {f"r{n}": 1 for n in range(33)},
    ],
)
def test_limits_that_are_none(value: object) -> None:
    with pytest.raises(TokenRefused, match="plan is not an object of limits"):
        principal_of({"sub": "a", "plan": value}, ClaimsConfig(limits="plan"))


def test_required_claims() -> None:
    claims = {"scope": "x", "realm": {"id": 0}, "none": None}
    check_required(claims, ("scope", "realm.id"))
    for path in ("none", "azp", "realm.name"):
        with pytest.raises(TokenRefused, match=f"no claim {path}"):
            check_required(claims, ("scope", path))
