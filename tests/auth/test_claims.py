from __future__ import annotations

from typing import Any

import pytest

from auth.claims import principal_of
from auth.config import ClaimsConfig
from auth.token import TokenRefused
from core.principal import Principal


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
