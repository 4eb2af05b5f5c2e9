"""The limits on a real Valkey: exactness, the script against the pure bucket, and every failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.errors import RateLimited
from core.metrics import Metrics
from ratelimit.bucket import UNITS, Level, Limit, change, refill
from ratelimit.config import LimitsConfig, RedisConfig, RedisStoreConfig, Rule
from ratelimit.limiter import Limiter, Reservation
from ratelimit.plan import make_plan
from ratelimit.redis_store import SCRIPT, RedisStore
from ratelimit.redis_wire import Wire
from ratelimit.store import Charge, StoreUnavailable

TENANT = "acme"
HUNDRED = Rule(name="hundred", requests_per_minute=100)
TOKENS = Rule(name="tokens", tokens_per_minute=1000)
LONG_S = 0.9
"""A deadline that a busy test machine does not miss."""


class Gateway:
    """A Limiter on the server, as one gateway process has it."""

    def __init__(self, url: str, *rules: Rule, deadline_s: float = LONG_S, **more: Any) -> None:
        self.metrics = Metrics.private()
        store = RedisStoreConfig(redis=RedisConfig(url=url, deadline_s=deadline_s, **more))
        self.limiter = Limiter(LimitsConfig(store=store, rules=rules), self.metrics)

    @property
    def store(self) -> RedisStore:
        store = self.limiter._store
        assert isinstance(store, RedisStore)
        return store

    async def reserve(self, prompt: int = 10, output: int = 0) -> Reservation:
        return await self.limiter.reserve(
            tenant=TENANT, tier="", model="m", prompt_tokens=prompt, max_output_tokens=output
        )

    async def granted(self, prompt: int = 10) -> bool:
        try:
            await self.reserve(prompt)
        except RateLimited:
            return False
        return True

    async def flushed(self) -> None:
        """Until all settles so far are in."""
        assert self.store._wire is not None
        await self.store._wire.call(b"*1\r\n$4\r\nPING\r\n")

    async def level(self, rule: Rule = TOKENS) -> float:
        """What the rule's bucket holds in Redis, in tokens."""
        await self.flushed()
        plan = make_plan([rule], TENANT, "", "m")
        probe = Charge(plan, (10**16 - 1,) * len(plan.buckets))
        return (await self.store.reserve(probe)).levels[0] / UNITS

    def failures(self, kind: str) -> float:
        return self.metrics.value("headrace_limit_store_failures_total", kind)

    def decisions(self, rule: Rule, result: str) -> float:
        return self.metrics.value("headrace_limit_decisions_total", rule.name, result)


Factory = Callable[..., Any]


@pytest.fixture
async def gateway(valkey: Any) -> AsyncIterator[Factory]:
    """Makes started gateways on the server, and closes them after the test."""
    started: list[Gateway] = []

    async def make(*rules: Rule, url: str = "", **more: Any) -> Gateway:
        each = Gateway(url or valkey.url, *rules, **more)
        started.append(each)
        await each.limiter.start()
        return each

    yield make
    for each in started:
        await each.limiter.close()


@pytest.fixture
def client(valkey: Any) -> Any:
    """An operator's connection to the same server."""
    with redis.Redis(unix_socket_path=valkey.socket_path) as connection:
        yield connection


async def eventually(condition: Callable[[], object], within_s: float = 5.0) -> None:
    give_up_at = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < give_up_at, "not in time"
        await asyncio.sleep(0.005)


async def test_concurrent_takes_admit_exactly_the_capacity(gateway: Factory) -> None:
    one = await gateway(HUNDRED)
    started_at = time.monotonic()
    granted = await asyncio.gather(*[one.granted() for _ in range(2000)])
    refilled = int((time.monotonic() - started_at) * 100 / 60)
    assert one.failures("timeout") == 0
    assert 100 <= sum(granted) <= 100 + refilled


async def test_two_gateways_share_one_bucket(gateway: Factory, valkey: Any) -> None:
    one, two = await gateway(HUNDRED), await gateway(HUNDRED, url=valkey.tcp_url)
    started_at = time.monotonic()
    granted = await asyncio.gather(*[each.granted() for _ in range(1000) for each in (one, two)])
    refilled = int((time.monotonic() - started_at) * 100 / 60)
    assert one.failures("timeout") == two.failures("timeout") == 0
    assert 100 <= sum(granted) <= 100 + refilled


async def test_a_tick_is_one_write(gateway: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await gateway(HUNDRED)
    flushes = []
    flush = Wire._flush

    def counted(self: Wire) -> None:
        flushes.append(len(self._outgoing))
        flush(self)

    monkeypatch.setattr(Wire, "_flush", counted)
    await asyncio.gather(*[one.granted() for _ in range(32)])
    assert flushes == [32]


async def test_what_is_charged_in_the_end_is_what_was_used(gateway: Factory) -> None:
    one = await gateway(Rule(name="tokens", tokens_per_minute=1, tokens_burst=1000))
    settled, abandoned, short = [await one.reserve(100, 50) for _ in range(3)]
    settled.settle(120)
    abandoned.abandon()
    short.settle(400)
    assert 480 <= await one.level(one.limiter._config.rules[0]) < 481


async def test_a_debt_refuses_until_it_is_worked_off(gateway: Factory) -> None:
    one = await gateway(TOKENS)
    (await one.reserve(10)).settle(1500)
    await one.flushed()
    with pytest.raises(RateLimited) as caught:
        await one.reserve(0)
    assert caught.value.retry_after_s == pytest.approx(30, abs=3)
    assert dict(caught.value.headers)[b"x-ratelimit-remaining-tokens"] == b"0"


async def test_an_id_is_charged_once_and_settled_once(gateway: Factory) -> None:
    one = await gateway(TOKENS)
    plan = make_plan([Rule(name="tokens", tokens_per_minute=1, tokens_burst=1000)], TENANT, "", "m")
    rule = plan.rules[0]
    charge = one.store._named(Charge(plan, plan.amounts(100)))
    wire = one.store._wire
    reserve = one.store._command(charge, b"r", charge.amounts)
    settle = one.store._command(charge, b"s", plan.used(30))
    for _ in range(3):
        assert (await wire.call(reserve))[0] == 1
        assert int(await one.level(rule)) == 900
    for _ in range(3):
        await wire.call(settle)
        assert int(await one.level(rule)) == 970
    await wire.call(reserve)
    assert int(await one.level(rule)) == 970


async def test_a_reserve_that_comes_after_its_abandoning_costs_nothing(gateway: Factory) -> None:
    one = await gateway(TOKENS)
    plan = make_plan([TOKENS], TENANT, "", "m")
    charge = one.store._named(Charge(plan, plan.amounts(100)))
    await one.store._wire.call(one.store._command(charge, b"s", plan.nothing))
    await one.store._wire.call(one.store._command(charge, b"r", charge.amounts))
    assert await one.level() == 1000


async def test_a_request_cancelled_while_redis_decides_costs_nothing(gateway: Factory) -> None:
    one = await gateway(TOKENS)
    for ticks in range(3):
        task = asyncio.ensure_future(one.reserve(100))
        for _ in range(ticks):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await one.level() == 1000
    assert await one.granted(1000)


@pytest.mark.parametrize("during", ["script_flush", "restart"])
async def test_a_forgotten_script_is_no_failure(
    gateway: Factory, client: Any, valkey: Any, during: str
) -> None:
    one = await gateway(TOKENS)
    held = await one.reserve(100)
    if during == "script_flush":
        client.script_flush()
    else:
        valkey.restart()
        await eventually(lambda: one.store._wire is None)
        await eventually(lambda: one.store.ready() is None)
        client.script_flush()
    held.settle(40)
    granted = await asyncio.gather(*[one.granted(10) for _ in range(5)])
    assert all(granted)
    assert one.decisions(TOKENS, "granted") == 6
    assert 910 <= await one.level() < 930


async def test_a_dead_gateway_gives_back_after_the_lease(gateway: Factory, client: Any) -> None:
    rule = Rule(name="tokens", tokens_per_minute=1, tokens_burst=1000, lease_s=1)
    dead, other = await gateway(rule), await gateway(rule)
    await dead.reserve(900)
    dead.store._wire.drop("killed")
    assert not await other.granted(200)
    await asyncio.sleep(1.0)
    assert await other.granted(200)
    assert 800 <= await other.level(rule) < 801
    assert client.hlen("headrace:{acme}:open") == 1


async def test_an_answer_longer_than_its_lease_is_charged_when_it_ends(
    gateway: Factory, client: Any
) -> None:
    rule = Rule(name="tokens", tokens_per_minute=1, tokens_burst=1000)
    one = await gateway(rule)
    held = await one.reserve(900)
    client.zadd("headrace:{acme}:leases", {held._charge.id: 1})  # type: ignore[union-attr]
    assert await one.level(rule) == 1000
    held.settle(700)
    assert 300 <= await one.level(rule) < 301


async def test_idle_tenants_leave_nothing_behind(gateway: Factory, client: Any) -> None:
    rule = Rule(name="requests", requests_per_minute=60_000, lease_s=1)
    one = await gateway(rule)
    (await one.reserve()).settle(1)
    await one.flushed()
    keys = client.keys("*acme*")
    assert len(keys) == 3
    assert all(0 < client.pttl(key) <= 90_000 for key in keys)


async def test_a_frozen_redis_costs_a_few_deadlines_and_then_nothing(
    gateway: Factory, valkey: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadline_s = 0.1
    one = await gateway(HUNDRED, deadline_s=deadline_s, connect_timeout_s=0.2)
    sent: list[bytes] = []
    for name in ("submit", "submit_later"):
        method = getattr(Wire, name)

        def spy(self: Wire, call: Any, method: Any = method) -> None:
            sent.append(call.command)
            method(self, call)

        monkeypatch.setattr(Wire, name, spy)
    valkey.pause()
    try:
        for _ in range(3):
            started_at = time.monotonic()
            assert await one.granted()
            # The deadline, and room for a busy machine.
            assert time.monotonic() - started_at < deadline_s + 0.25
        assert one.failures("timeout") == 3
        await eventually(lambda: one.store.ready() is not None)
        assert "circuit open" in one.store.ready()
        sent.clear()
        assert all([await one.granted() for _ in range(97)])
        assert not await one.granted()
        assert not any(b"{acme}" in command for command in sent)
        assert one.decisions(HUNDRED, "local_granted") == 100
    finally:
        valkey.resume()
    await eventually(lambda: one.store.ready() is None)
    # What timed out was abandoned: nothing of it is charged, in whichever order it arrived.
    assert await one.level(HUNDRED) == 100
    assert await one.granted()
    assert one.decisions(HUNDRED, "granted") == 1


async def test_a_slow_reply_is_not_charged(gateway: Factory, valkey: Any) -> None:
    one = await gateway(TOKENS, deadline_s=0.2, failures_to_open=100)
    valkey.pause()
    plan = make_plan([TOKENS], TENANT, "", "m")
    with pytest.raises(StoreUnavailable, match="timeout"):
        await one.store.reserve(Charge(plan, plan.amounts(100)))
    valkey.resume()
    await asyncio.sleep(0.1)
    assert await one.level() == 1000


async def test_starts_without_redis_and_finds_it(gateway: Factory, valkey: Any) -> None:
    valkey.stop()
    one = await gateway(HUNDRED)
    assert "never reached" in one.limiter.ready()
    assert await one.granted()
    assert one.decisions(HUNDRED, "local_granted") == 1
    valkey.start()
    await eventually(lambda: one.store.ready() is None)
    assert await one.granted()
    assert one.decisions(HUNDRED, "granted") == 1
    assert one.metrics.value("headrace_limit_store_state") == 1


async def test_settles_wait_for_redis_to_come_back(gateway: Factory, client: Any) -> None:
    rule = Rule(name="tokens", tokens_per_minute=1, tokens_burst=1000)
    one = await gateway(rule)
    held = [await one.reserve(100) for _ in range(5)]
    client.client_kill_filter(_type="normal", skipme=True)
    await eventually(lambda: one.store._wire is None or one.store._wire.lost.done())
    for each in held:
        each.settle(20)
    await eventually(lambda: one.store.ready() is None)
    assert int(await one.level(rule)) == 900


async def test_a_key_of_a_wrong_type_is_one_tenants_trouble(gateway: Factory, client: Any) -> None:
    one = await gateway(HUNDRED)
    client.rpush("headrace:{acme}:hundred:requests:m", "x")
    for _ in range(5):
        assert await one.granted()
    assert one.failures("wrong_type") == 5
    assert one.store.ready() is None


@pytest.mark.parametrize(
    ("fault", "repair", "kind"),
    [
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE"), "readonly"),
        (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0"), "oom"),
    ],
)
async def test_a_server_that_refuses_writes_opens_the_circuit(
    gateway: Factory, client: Any, fault: Any, repair: Any, kind: str
) -> None:
    one = await gateway(HUNDRED)
    client.execute_command(*fault)
    for _ in range(3):
        assert await one.granted()
    assert one.failures(kind) >= 1
    await eventually(lambda: one.store.ready() is not None)
    assert await one.granted()
    client.execute_command(*repair)
    await eventually(lambda: one.store.ready() is None)
    assert await one.granted()
    assert one.decisions(HUNDRED, "granted") == 1


async def test_a_full_server_is_unavailable(gateway: Factory, client: Any) -> None:
    client.config_set("maxclients", 1)
    one = await gateway(HUNDRED)
    # The server says so and hangs up at once: its words may be lost with the connection.
    assert one.store._why in ("max_clients", "lost")
    assert "never reached" in one.limiter.ready()
    assert await one.granted()


async def test_a_password_is_needed_and_given(
    gateway: Factory, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from core.section import Secret

    client.config_set("requirepass", "hunter2")
    monkeypatch.setenv("LIMITS_PASSWORD", "hunter2")
    without = await gateway(HUNDRED)
    assert "(auth)" in without.limiter.ready()
    with_it = await gateway(HUNDRED, password=Secret("env:LIMITS_PASSWORD"))
    assert with_it.store.ready() is None
    assert "hunter2" not in repr(with_it.store)


async def test_closing_sends_the_last_settles(gateway: Factory) -> None:
    rule = Rule(name="tokens", tokens_per_minute=1, tokens_burst=1000)
    one, other = await gateway(rule), await gateway(rule)
    (await one.reserve(800)).settle(50)
    await one.limiter.close()
    assert int(await other.level(rule)) == 950


# The script against the pure bucket.

LIMITS = [Limit(1000 * UNITS, 60), Limit(7 * UNITS, 1_000_003), Limit(10**9 * UNITS, 10**9)]
LEASE_US = 5_000_000
DONE_US = 10_000_000
operation = st.tuples(
    st.integers(-2_000_000, 70_000_000),
    st.sampled_from("rrs"),
    st.integers(0, 4),
    st.lists(st.integers(0, 1200), min_size=3, max_size=3),
)


class Model:
    """The script in terms of `bucket.py`."""

    def __init__(self) -> None:
        self.levels: list[Level | None] = [None] * len(LIMITS)
        self.records: dict[int, tuple[int, list[int] | None]] = {}

    def run(self, now: int, op: str, name: int, asked: list[int]) -> list[int]:
        for each, (until, amounts) in list(self.records.items()):
            if until <= now:
                del self.records[each]
                for i, amount in enumerate(amounts or ()):
                    if (stored := self.levels[i]) is not None:
                        self.levels[i] = (stored[0] + amount, stored[1])
        levels = [refill(limit, s, now) for limit, s in zip(LIMITS, self.levels, strict=True)]
        known, record = name in self.records, self.records.get(name, (0, [0, 0, 0]))[1]
        granted = all(level[0] >= amount for level, amount in zip(levels, asked, strict=True))
        if op == "r":
            if known or not granted:
                return [int(known), *(level[0] for level in levels)]
            moves = [-amount for amount in asked]
            self.records[name] = (now + LEASE_US, asked)
        else:
            if record is None:
                return [1, *(level[0] for level in levels)]
            moves = [held - used for held, used in zip(record, asked, strict=True)]
            self.records[name] = (now + DONE_US, None)
        moved = [change(*each) for each in zip(LIMITS, levels, moves, strict=True)]
        self.levels = list(moved)
        return [1, *(level[0] for level in moved)]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(operation, max_size=25))
def test_the_script_is_the_pure_bucket(
    client: Any, trace: list[tuple[int, str, int, list[int]]]
) -> None:
    client.flushall()
    model, now, expected = Model(), 1_800_000_000_000_000, []
    pipeline = client.pipeline(transaction=False)
    for step, op, name, tokens in trace:
        now += step
        # Awkward amounts: not whole tokens, and for the third bucket close to its capacity.
        asked = [tokens[0] * UNITS + name, tokens[1] * UNITS // 150, tokens[2] * 900_001 * UNITS]
        expected.append(model.run(now, op, name, asked))
        arguments: list[object] = [op, name, LEASE_US, now]
        for limit, amount in zip(LIMITS, asked, strict=True):
            arguments += [limit.capacity, limit.per_minute, amount]
        keys = ["{t}:leases", "{t}:open", *(f"{{t}}:{i}" for i in range(len(LIMITS)))]
        pipeline.eval(SCRIPT, len(keys), *keys, *arguments)
    assert pipeline.execute() == expected
