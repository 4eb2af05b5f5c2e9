from __future__ import annotations

import asyncio
from typing import Any

import pytest
from charges import REQUESTS, STREAMS, TOKENS, charge_of, plan_of

from core.errors import ConfigError
from core.metrics import Metrics
from core.section import FilePath
from ratelimit import redis_store
from ratelimit.bucket import UNITS
from ratelimit.config import RedisConfig
from ratelimit.plan import Plan
from ratelimit.redis_store import RedisStore
from ratelimit.redis_wire import LINGER_S, Call
from ratelimit.store import Decision, StoreUnavailable

PLAN = plan_of(REQUESTS, TOKENS)


class FakeWire:
    """Answers each call with `reply`."""

    def __init__(self, reply: Any = None) -> None:
        self.reply = reply
        self.called: list[bytes] = []
        self.soon: list[Call] = []
        self.later: list[Call] = []

    def call(self, command: bytes, slot: int) -> asyncio.Future[Any]:
        self.called.append(command)
        future = asyncio.get_running_loop().create_future()
        reply = self.reply
        future.set_result(list(reply) if isinstance(reply, list) else reply)
        return future

    def submit_later(self, call: Call, within_s: float = LINGER_S) -> None:
        (self.later if within_s == LINGER_S else self.soon).append(call)


def store(metrics: Metrics | None = None, wire: FakeWire | None = None) -> RedisStore:
    config = RedisConfig(url="redis://cache:6379")
    made = RedisStore(config, metrics or Metrics.private(), 30.0)
    made._id_prefix = b"p" * 16
    made._routes.wire = wire  # type: ignore[attr-defined]
    return made


async def reserve(redis: RedisStore, plan: Plan = PLAN) -> Decision:
    return await redis.reserve(charge_of(plan))


async def test_a_reply_is_a_decision() -> None:
    wire = FakeWire([1, 9 * UNITS, 5])
    assert await reserve(store(wire=wire)) == (True, [9 * UNITS, 5], 0)
    wire.reply = [0, 1, 2]
    assert await reserve(store(wire=wire)) == (False, [1, 2], 0)
    wire.reply = [1 + 2 * 0b10, 1, 2]
    assert await reserve(store(wire=wire)) == (True, [1, 2], 0b10)


@pytest.mark.parametrize(
    "reply", [5, b"ab", [], [1], [1, 2, 3, 4], [1, b"2", 3], [1, [2], 3], None]
)
async def test_what_is_no_reply_of_the_script_is_a_failure_and_costs_nothing(reply: object) -> None:
    wire, metrics = FakeWire(reply), Metrics.private()
    with pytest.raises(StoreUnavailable, match="protocol"):
        await reserve(store(metrics, wire))
    assert [call.kept for call in wire.later] == [True]
    assert metrics.value("headrace_limit_store_failures_total", "protocol") == 1


async def test_every_charge_has_its_own_id() -> None:
    redis = store(wire=FakeWire([1, 0, 0]))
    charges = [charge_of(PLAN) for _ in range(100)]
    for charge in charges:
        await redis.reserve(charge)
    assert len({charge.id for charge in charges}) == 100
    assert {len(charge.id) for charge in charges} == {32}


async def test_without_a_connection_nothing_is_tried() -> None:
    redis = store()
    assert redis.ready() == "the limits' store redis://cache:6379: never reached (not started)"
    for call in (reserve(redis), redis.levels(PLAN), redis.reset(PLAN)):
        with pytest.raises(StoreUnavailable, match="circuit_open"):
            await call
    charge = charge_of(PLAN)
    redis.progress(charge, PLAN.nothing)
    assert not redis._backlog


async def test_a_slot_is_given_back_sooner_than_tokens() -> None:
    wire = FakeWire()
    redis = store(wire=wire)
    redis.progress(charge_of(PLAN), PLAN.nothing)
    redis.settle(charge_of(PLAN), PLAN.nothing)
    assert [call.kept for call in wire.later] == [False, True]
    assert not wire.soon
    with_streams = plan_of(STREAMS, TOKENS)
    redis.settle(charge_of(with_streams), with_streams.nothing)
    assert [call.kept for call in wire.soon] == [True]


async def test_settles_without_a_connection_are_kept_within_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redis_store, "BACKLOG", 3)
    metrics, wire = Metrics.private(), FakeWire()
    redis = store(metrics)
    for _ in range(5):
        redis.settle(charge_of(PLAN), PLAN.nothing)
    assert len(redis._backlog) == 3
    assert metrics.value("headrace_limit_store_failures_total", "settle_dropped") == 2
    redis._routes.wire = wire  # type: ignore[attr-defined]
    redis._changed()
    assert len(wire.later) == 3
    assert not redis._backlog


async def test_a_settle_is_not_repeated_when_the_script_may_have_forgotten_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metrics, now = Metrics.private(), 1000.0
    monkeypatch.setattr(redis_store.time, "monotonic", lambda: now)
    redis = store(metrics)
    call = Call(b"", kept=True)
    for _ in range(2):
        call.due_at = now
        redis._keep(call)
        now += 20.0
    assert len(redis._backlog) == 2
    call.due_at = now
    redis._keep(call)
    assert len(redis._backlog) == 2
    assert metrics.value("headrace_limit_store_failures_total", "settle_dropped") == 1


def test_certificates_that_are_not_there_are_an_operators_fault() -> None:
    config = RedisConfig(url="rediss://cache", ca=FilePath("/nowhere/ca.pem"))
    with pytest.raises(ConfigError, match=r"/nowhere/ca\.pem"):
        RedisStore(config, Metrics.private(), 30.0)


async def test_two_stores_are_counted_together_while_one_follows_the_other() -> None:
    metrics = Metrics.private()
    stores = [store(metrics, FakeWire()) for _ in range(2)]

    def shown() -> float:
        return metrics.value("headrace_limit_store_state")

    for number, redis in enumerate(stores):
        for _ in range(2):
            redis._changed()
        assert shown() == number + 1
    for number, redis in enumerate(stores):
        redis._routes.wire = None  # type: ignore[attr-defined]
        await redis.close()
        assert shown() == 1 - number
