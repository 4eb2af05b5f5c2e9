"""What an operator sees of the limits in a real Valkey, and does to them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis
from limit_gateway import Gateway

from core.principal import Principal
from ratelimit import redis_inspect
from ratelimit.config import RedisConfig, Rule
from ratelimit.live import Live
from ratelimit.redis_inspect import CannotAsk, Inspector

REQUESTS = Rule(name="requests", limit=10, window="day")
TOKENS = Rule(name="tokens", unit="total_tokens", limit=1000, window="day", per=("tenant", "model"))
STREAMS = Rule(name="streams", unit="concurrent", limit=4, per=("user",))
BUDGET = Rule(name="budget", unit="requests", limit=100, window="day", per=("organisation",))
SHARED = Rule(name="shared", limit=500, window="day", per=("model",))
RULES = (REQUESTS, TOKENS, STREAMS, BUDGET, SHARED)
ACME = Principal("acme", "bob", organisation="group")
SISTER = Principal("sister", "eve", organisation="group")
STRANGER = Principal("acme2", "bob")


@pytest.fixture
async def gateway(valkey: Any) -> AsyncIterator[Gateway]:
    made = Gateway(valkey.url, *RULES)
    await made.limiter.start()
    yield made
    await made.limiter.close()


@pytest.fixture
def inspector(valkey: Any) -> Inspector:
    return Inspector(RedisConfig(url=valkey.url), RULES, ["m", "unused"])


def seen(lives: list[Live]) -> dict[str, tuple[dict[str, str], int]]:
    assert len({live.found.key for live in lives}) == len(lives)
    return {live.found.rule.name: (dict(live.found.who), live.left) for live in lives}


async def test_a_tenant_sees_its_own_buckets_and_those_that_it_shares(
    gateway: Gateway, inspector: Inspector
) -> None:
    own = {"organisation": "group", "tenant": "acme"}
    held = [await gateway.reserve(prompt=100, principal=ACME) for _ in range(2)]
    for other in (SISTER, STRANGER):
        (await gateway.reserve(prompt=100, principal=other)).settle(100, 0, 0)
    await gateway.flushed()
    assert seen(inspector.show("acme")) == {
        "requests": (own, 8),
        "tokens": ({**own, "model": "m"}, 800),
        "streams": ({**own, "user": "bob"}, 2),
        "budget": ({"organisation": "group"}, 97),
        "shared": ({"model": "m"}, 496),
    }
    assert set(seen(inspector.show("@group"))) == {"budget", "shared"}
    assert set(seen(inspector.show("nobody"))) == {"shared"}
    assert not inspector.truncated
    for each in held:
        each.abandon()


async def test_reset_fills_the_tenants_own_buckets_alone(
    gateway: Gateway, inspector: Inspector
) -> None:
    for _ in range(10):
        (await gateway.reserve(principal=ACME)).settle(10, 0, 0)
    assert not await gateway.granted(principal=ACME)
    await gateway.flushed()
    assert inspector.reset("acme", "tokens") == 1
    assert not await gateway.granted(principal=ACME)
    assert inspector.reset("acme") == 1  # of streams, none is open
    assert set(seen(inspector.show("acme"))) == {"shared"}
    assert await gateway.granted(principal=ACME)
    assert seen(inspector.show("acme"))["budget"][1] == 89
    assert inspector.reset("@group") == 1


async def test_as_many_buckets_as_there_may_be(
    gateway: Gateway, inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_inspect, "MOST_BUCKETS", 3)
    for user in range(5):
        await gateway.reserve(principal=Principal("acme", str(user)))
    assert len(inspector.show("acme")) == 4  # and the one that is shared
    assert inspector.truncated


def test_a_server_that_is_not_there_is_a_sentence(valkey: Any, inspector: Inspector) -> None:
    valkey.stop()
    with pytest.raises(CannotAsk, match=r"the limits' store unix://.* cannot be asked"):
        inspector.show("acme")


def test_keys_are_found_by_scan_alone(valkey: Any, inspector: Inspector) -> None:
    with redis.Redis(unix_socket_path=valkey.socket_path) as client:
        client.execute_command("ACL", "SETUSER", "default", "-keys", "-flushall")
    inspector.show("acme")
