from __future__ import annotations

from typing import Any

import hiredis
import pytest

from core.errors import ConfigError
from core.metrics import Metrics
from core.section import FilePath
from ratelimit import redis_store
from ratelimit.bucket import MAX_TOKENS, UNITS
from ratelimit.config import RedisConfig, Rule
from ratelimit.plan import Plan, make_plan
from ratelimit.redis_store import SHA, RedisStore
from ratelimit.store import Charge, StoreUnavailable


def store(metrics: Metrics | None = None) -> RedisStore:
    made = RedisStore(RedisConfig(url="redis://cache:6379"), metrics or Metrics.private())
    made._id_prefix = b"p" * 16
    return made


def plan(model: str = "50% ü") -> Plan:
    rule = Rule(name="r", requests_per_minute=2, tokens_per_minute=MAX_TOKENS, lease_s=60)
    return make_plan([rule], "a c", "", model)


def parsed(data: bytes) -> Any:
    reader = hiredis.Reader()
    reader.feed(data)
    words = reader.gets()
    assert reader.gets() is False, "more than one command"
    return words


def test_a_charge_is_one_well_formed_command() -> None:
    redis, each = store(), plan()
    charge = redis._named(Charge(each, each.amounts(10**12)))
    assert parsed(redis._command(charge, b"r", charge.amounts)) == [
        b"EVALSHA",
        SHA,
        b"4",
        b"headrace:{a%20c}:leases",
        b"headrace:{a%20c}:open",
        b"headrace:{a%20c}:r:requests:50%25%20%C3%BC",
        b"headrace:{a%20c}:r:tokens:50%25%20%C3%BC",
        b"r",
        charge.id,
        b"60000000",
        b"0",
        b"%d" % (2 * UNITS),
        b"2",
        b"%016d" % UNITS,
        b"%d" % (MAX_TOKENS * UNITS),
        b"%d" % MAX_TOKENS,
        b"%016d" % (MAX_TOKENS * UNITS),
    ]


def test_every_charge_has_its_own_id() -> None:
    redis, each = store(), plan()
    ids = {redis._named(Charge(each, each.amounts(1))).id for _ in range(100)}
    assert len(ids) == 100
    assert {len(each) for each in ids} == {32}


async def test_without_a_connection_nothing_is_tried() -> None:
    redis, each = store(), plan()
    assert redis.ready() == "the limits' store redis://cache:6379: never reached (not started)"
    with pytest.raises(StoreUnavailable, match="circuit_open"):
        await redis.reserve(Charge(each, each.amounts(1)))


def test_settles_without_a_connection_are_kept_within_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redis_store, "BACKLOG", 3)
    metrics = Metrics.private()
    redis, each = store(metrics), plan()
    for _ in range(5):
        redis.settle(redis._named(Charge(each, each.amounts(1))), each.nothing)
    assert len(redis._backlog) == 3
    assert metrics.value("headrace_limit_store_failures_total", "settle_dropped") == 2


def test_certificates_that_are_not_there_are_an_operators_fault() -> None:
    config = RedisConfig(url="rediss://cache", ca=FilePath("/nowhere/ca.pem"))
    with pytest.raises(ConfigError, match=r"/nowhere/ca\.pem"):
        RedisStore(config, Metrics.private())
