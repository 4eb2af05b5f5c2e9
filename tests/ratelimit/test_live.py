from __future__ import annotations

import json
from fnmatch import fnmatchcase
from typing import Any, get_args

import pytest
from charges import REQUESTS, STREAMS
from hypothesis import given
from hypothesis import strategies as st

from core.principal import Principal
from ratelimit.bucket import UNITS
from ratelimit.config import Dimension, Rule, Unit
from ratelimit.live import (
    Found,
    Keys,
    document,
    is_of_organisation,
    is_of_tenant,
    slots_left,
    table,
    tokens_left,
)
from ratelimit.plan import Who, make_plan
from ratelimit.redis_command import Commands

names = st.text("ab:/@*%{} é\n", min_size=1, max_size=6)
rules = st.builds(
    Rule,
    name=st.sampled_from(["leases", "a", "b-c"]),
    limit=st.just(10),
    unit=st.sampled_from(get_args(Unit)),
    per=st.lists(st.sampled_from(get_args(Dimension)), unique=True).map(tuple),
)


def keys_in_store(rule: Rule, caller: Principal, model: str = "m", address: str = "") -> list[str]:
    plan = make_plan([rule], Who(caller, model, address=address))
    return [key.decode() for key in Commands("pre:fix", 1)._keys(plan)]


@given(rules, names, names | st.just(""), names, names)
def test_a_key_says_whose_bucket_it_is(
    rule: Rule, tenant: str, organisation: str, user: str, model: str
) -> None:
    caller = Principal(tenant, user, organisation=organisation, key=user)
    *others, key = keys_in_store(rule, caller, model, "192.0.2.7")
    keys = Keys("pre:fix", [rule])
    assert [keys.read(other) for other in others] == [None, None]
    found = keys.read(key)
    assert found is not None
    said = {
        "organisation": organisation,
        "tenant": tenant,
        "user": user,
        "key": user,
        "model": model,
        "address": "192.0.2.7",
    }
    assert found.who.items() <= said.items()
    per = set(rule.per)
    assert found.shared == per.isdisjoint({"organisation", "tenant", "user", "key"})
    inside = not per.isdisjoint({"tenant", "user", "key"})
    one_tenant = inside or ("organisation" in per and not organisation)
    assert is_of_tenant(found, tenant) == one_tenant
    assert not is_of_tenant(found, tenant + "x")
    if one_tenant:
        assert found.who.get("organisation", "") == organisation
        assert fnmatchcase(key, keys.of_tenant(tenant))
    whole = "organisation" in per and not one_tenant
    assert is_of_organisation(found, organisation) == whole
    if whole:
        assert fnmatchcase(key, keys.of_organisation(organisation))


def test_what_everybody_shares_is_found_without_looking() -> None:
    everybody = Rule(name="all", limit=1, per=())
    by_model = Rule(name="model", limit=1, per=("model",))
    by_address = Rule(name="address", limit=1, per=("address",))
    keys = Keys("pre:fix", [everybody, by_model, by_address, REQUESTS])
    made = keys.shared(["m/1", "m2"])
    expected = [
        keys_in_store(everybody, Principal("t"))[-1],
        keys_in_store(by_model, Principal("t"), "m/1")[-1],
        keys_in_store(by_model, Principal("t"), "m2")[-1],
    ]
    assert made == expected
    assert all(keys.read(key) for key in made)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "other:{t}:requests:requests:t",
        "p:{t}:gone:requests:t",
        "p:{t}:requests:tokens:t",
        "p:{t}:requests:requests",
        "p:{t}:requests:requests:t:u",
        "p:{t",
        "p:{t}:",
    ],
)
def test_keys_of_others_and_of_rules_that_are_gone_are_none(key: str) -> None:
    assert Keys("p", [REQUESTS]).read(key) is None


def found(rule: Rule, **who: str) -> Found:
    return Found("key", rule, who)


def test_levels_are_as_of_now() -> None:
    bucket = found(REQUESTS, tenant="t")  # 10 a minute
    at = 1_000_000_000
    live = tokens_left(bucket, f"{3 * UNITS} {at}", at + 6_000_000)
    assert live is not None
    assert (live.left, live.capacity, live.full_us) == (4, 10, 36_000_000)
    debt = tokens_left(bucket, f"{-UNITS} {at}", at)
    assert debt is not None
    assert (debt.left, debt.full_us) == (-1, 66_000_000)
    assert tokens_left(bucket, "nonsense", at) is None
    assert tokens_left(bucket, "1 2 3", at) is None


def test_a_table_for_people_and_a_document_for_machines() -> None:
    shadow = Rule(name="budget", unit="cost_units", limit=5, window="day", per=(), shadow=True)
    lives: list[Any] = [
        tokens_left(found(REQUESTS, tenant="t\x1b[2J"), f"{3 * UNITS} 0", 0),
        slots_left(found(STREAMS, tenant="t"), 2),
        tokens_left(found(shadow), f"{UNITS} 0", 0),
    ]
    assert table(lives).splitlines() == [
        "RULE             UNIT        FOR               LEFT  OF  REFILL     FULL IN",
        "requests         requests    tenant=t%1B%5B2J  3     10  10/minute  42s",
        "streams          concurrent  tenant=t          1     3   2 held     -",
        "budget (shadow)  cost_units  everybody         1     5   5/day      1152m0s",
    ]
    first, second, third = json.loads(json.dumps([document(live) for live in lives]))
    assert first == {
        "rule": "requests",
        "unit": "requests",
        "for": {"tenant": "t\x1b[2J"},
        "left": 3,
        "capacity": 10,
        "refill": 10,
        "window": "minute",
        "full_in_s": 42.0,
    }
    assert (second["held"], "window" in second) == (2, False)
    assert third["shadow"] is True
