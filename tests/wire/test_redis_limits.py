"""The limits on a real Valkey: exactness, leases, and every failure of the server."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import listening
import pytest
import redis
from charges import plan_of
from limit_gateway import HUNDRED, STEADY, STREAMS, TOKENS, Gateway

from core.errors import RateLimited
from core.principal import Principal
from core.section import Secret
from ratelimit.config import Rule
from ratelimit.redis_wire import Call, Wire
from ratelimit.store import Charge, StoreUnavailable

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
    one = await gateway(STEADY)
    settled, abandoned, short = [await one.reserve(100, 50) for _ in range(3)]
    settled.settle(100, 0, 20)
    abandoned.abandon()
    short.settle(100, 0, 300)
    assert await one.level(STEADY) == 480


async def test_output_is_charged_while_it_is_relayed(gateway: Factory) -> None:
    one = await gateway(STEADY)
    held = await one.reserve(100, 50)
    relayed = 0
    held.follow(lambda: relayed)
    for more, level in ((40, 850), (20, 840), (140, 700)):
        relayed += more
        one.report()
        assert await one.level(STEADY) == level
    held.settle(100, 0, 190)
    assert await one.level(STEADY) == 710


async def test_streams_hold_their_slots_until_they_end(gateway: Factory) -> None:
    one = await gateway(STREAMS)
    held = [await one.reserve() for _ in range(3)]
    assert not await one.granted()
    held[0].settle(1, 0, 1)
    assert await one.granted()  # a slot is free before the next request can ask for it
    held[1].abandon()
    assert await one.level(STREAMS) == 1


async def test_a_slot_outlives_its_lease_while_it_is_renewed(gateway: Factory) -> None:
    one = await gateway(STREAMS, lease_s=1.0)
    held = await one.reserve()
    lost = await one.reserve()
    one.forget(lost)
    for _ in range(12):
        await asyncio.sleep(0.1)
        one.report(0.1)
    assert await one.level(STREAMS) == 2
    held.settle(1, 0, 1)
    assert await one.level(STREAMS) == 3


async def test_shadow_rules_are_not_charged_for_what_they_would_refuse(gateway: Factory) -> None:
    rules = [
        Rule(name="few", limit=1, window="day", shadow=True),
        Rule(name="one", unit="concurrent", limit=1, shadow=True),
        STEADY,
    ]
    one = await gateway(*rules)
    first, second = await one.reserve(), await one.reserve()
    assert (first.shadow_refusals, second.shadow_refusals) == ((), ("few", "one"))
    second.follow(lambda: 100)
    one.report()
    second.settle(10, 0, 100)
    assert [int(level) for level in await one.levels()] == [0, 0, 880]
    first.settle(10, 0, 0)
    assert [int(level) for level in await one.levels()] == [0, 1, 880]


async def test_a_hierarchy_is_charged_whole_or_not_at_all(gateway: Factory, client: Any) -> None:
    one = await gateway(
        Rule(name="organisation", limit=3, per=("organisation",), window="day"),
        Rule(name="tenant", limit=2, per=("tenant",), window="day"),
        Rule(name="user", limit=1, per=("user",), window="day"),
    )
    granted = [
        await one.granted(principal=Principal(tenant, user, organisation="big"))
        for tenant in ("one", "two")
        for user in "aabc"
    ]
    assert granted == [True, False, True, False, True, False, False, False]
    assert {key.split(b"}")[0] for key in client.keys("*big*")} == {b"headrace:{@big"}


async def test_a_debt_refuses_until_it_is_worked_off(gateway: Factory) -> None:
    one = await gateway(TOKENS)
    (await one.reserve(10)).settle(1500, 0, 0)
    await one.flushed()
    with pytest.raises(RateLimited) as caught:
        await one.reserve(0)
    assert caught.value.retry_after_s == pytest.approx(30, abs=3)
    assert dict(caught.value.headers)[b"x-ratelimit-remaining-tokens"] == b"0"


async def test_an_id_is_charged_once_and_settled_once(gateway: Factory) -> None:
    one = await gateway(TOKENS)
    plan, name, commands = plan_of(STEADY, STREAMS), b"i" * 32, one.store._commands
    reserve = commands.reserve(plan, name, plan.least(100, 0), plan.amounts(100, 0, 0))
    progress = commands.use(plan, b"c", name, plan.amounts(100, 0, 20))
    settle = commands.use(plan, b"s", name, plan.amounts(30, 0, 0))
    for command, levels in ((reserve, [900, 2]), (progress, [880, 2]), (settle, [970, 3])):
        for _ in range(3):
            assert (await one.wire.call(command))[0] == 1
            assert await one.levels(plan) == levels
    for late in (reserve, progress):
        await one.wire.call(late)
        assert await one.levels(plan) == [970, 3]


async def test_a_reserve_that_comes_after_its_abandoning_costs_nothing(gateway: Factory) -> None:
    one = await gateway(TOKENS)
    plan, name, commands = plan_of(TOKENS, STREAMS), b"i" * 32, one.store._commands
    await one.wire.call(commands.use(plan, b"s", name, plan.nothing))
    asked = plan.amounts(100, 0, 0)
    await one.wire.call(commands.reserve(plan, name, asked, asked))
    assert await one.levels(plan) == [1000, 3]


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
        await eventually(lambda: one.wire is None)
        await eventually(lambda: one.store.ready() is None)
        client.script_flush()
    held.settle(40, 0, 0)
    granted = await asyncio.gather(*[one.granted(10) for _ in range(5)])
    assert all(granted)
    assert one.decisions(TOKENS, "granted") == 6
    assert 910 <= await one.level() < 930


async def test_a_dead_gateway_gives_back_after_the_lease(gateway: Factory, client: Any) -> None:
    rules = [STEADY, STREAMS]
    dead, other = await gateway(*rules, lease_s=1.0), await gateway(*rules, lease_s=1.0)
    told, _ = [await dead.reserve(300, 100) for _ in range(2)]
    told.follow(lambda: 50)
    dead.report()
    await dead.flushed()
    dead.die()
    assert await other.levels() == [200, 1]
    await asyncio.sleep(1.0)
    assert await other.granted(600)
    # What the one had used stays charged; it may live on, so that much is remembered of it.
    assert await other.levels() == [50, 2]
    assert client.hlen("headrace:{acme}:open") == 2


async def test_an_answer_longer_than_its_lease_is_charged_when_it_ends(
    gateway: Factory, client: Any
) -> None:
    one = await gateway(STEADY, STREAMS)
    held = await one.reserve(900)
    lapse(client, held)
    assert await one.levels() == [1000, 3]
    held.settle(700, 0, 0)
    assert await one.levels() == [300, 3]


async def test_a_stream_that_outlived_its_lease_is_charged_no_more_than_it_used(
    gateway: Factory, client: Any
) -> None:
    one = await gateway(STEADY, STREAMS)
    held = await one.reserve(100, 100)
    relayed = 50
    held.follow(lambda: relayed)
    one.report()
    await one.flushed()
    lapse(client, held)
    assert await one.levels() == [850, 3]
    relayed = 80
    one.report()
    assert await one.levels() == [820, 2]
    lapse(client, held)
    held.settle(100, 0, 90)
    assert await one.levels() == [810, 3]


async def test_what_a_flushed_server_has_forgotten_is_charged_again(
    gateway: Factory, client: Any
) -> None:
    one = await gateway(STEADY, STREAMS)
    held, ends = await one.reserve(100, 50), await one.reserve(100, 50)
    held.follow(lambda: 70)
    client.flushall()
    assert await one.levels() == [1000, 3]
    ends.settle(100, 0, 10)
    one.report()
    assert await one.levels() == [720, 2]
    held.settle(100, 0, 80)
    assert await one.levels() == [710, 3]


async def test_idle_tenants_leave_nothing_behind(gateway: Factory, client: Any) -> None:
    rule = Rule(name="requests", limit=60_000)
    one = await gateway(rule, STREAMS, lease_s=1.0)
    (await one.reserve()).settle(1, 0, 0)
    await one.reserve()
    await one.flushed()
    keys = client.keys("*acme*")
    assert len(keys) == 4
    assert all(0 < client.pttl(key) <= 110_000 for key in keys)


async def test_a_frozen_redis_costs_a_few_deadlines_and_then_nothing(
    gateway: Factory, valkey: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadline_s = 0.1
    one = await gateway(HUNDRED, deadline_s=deadline_s, connect_timeout_s=0.2)
    sent: list[bytes] = []
    for name in ("submit", "submit_later"):
        method = getattr(Wire, name)

        def spy(self: Wire, call: Call, *rest: Any, method: Any = method) -> None:
            sent.append(call.command)
            method(self, call, *rest)

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


async def test_slow_replies_at_random_charge_each_reservation_once(
    gateway: Factory, valkey: Any
) -> None:
    """What was granted is charged what it used; what came too late costs nothing, though the
    script had charged it."""
    dice, tasks = random.Random(3), set[asyncio.Task[None]]()
    slow = asyncio.Event()

    async def copy(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, replies: bool
    ) -> None:
        while data := await reader.read(65_536):
            if replies and slow.is_set() and dice.random() < 0.3:
                await asyncio.sleep(dice.uniform(0.05, 0.2))
            writer.write(data)
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_unix_connection(valkey.socket_path)
        tasks.add(asyncio.ensure_future(copy(reader, there[1], False)))
        tasks.add(asyncio.ensure_future(copy(there[0], writer, True)))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    one = await gateway(STEADY, STREAMS, url=url, deadline_s=0.1, failures_to_open=100)
    other = await gateway(STEADY, STREAMS)
    slow.set()
    charged = degraded = 0
    for _ in range(60):
        try:
            reservation = await one.reserve(dice.randrange(20), dice.randrange(20))
        except RateLimited:
            continue
        used = dice.randrange(10)
        if reservation.degraded:
            degraded += 1
        else:
            charged += used
        reservation.settle(used, 0, 0)
    assert charged
    assert degraded
    await one.limiter.close()
    await eventually(lambda: all(task.done() for task in tasks))
    assert await other.levels() == [1000 - charged, 3]
    await listening.close(server)
    await server.wait_closed()


async def test_an_outage_admits_no_more_than_is_said(gateway: Factory, valkey: Any) -> None:
    """n gateways admit at most n times (burst and what flows in), and what the store had left."""
    rule = Rule(name="few", limit=10, window="day")
    gateways = [await gateway(rule) for _ in range(3)]
    for _ in range(4):
        assert await gateways[0].granted()
    valkey.stop()
    await eventually(lambda: all(each.store.ready() is not None for each in gateways))
    admitted = [sum([await each.granted() for _ in range(30)]) for each in gateways]
    assert admitted == [10, 10, 10]
    valkey.start()
    await eventually(lambda: all(each.store.ready() is None for each in gateways))
    # This server has forgotten everything: its bucket is full.
    assert sum([await gateways[1].granted() for _ in range(30)]) == 10


async def test_a_slow_reply_is_not_charged(gateway: Factory, valkey: Any) -> None:
    one = await gateway(TOKENS, deadline_s=0.2, failures_to_open=100)
    valkey.pause()
    plan = plan_of(TOKENS)
    with pytest.raises(StoreUnavailable, match="timeout"):
        await one.store.reserve(Charge(plan, plan.least(100, 0), plan.amounts(100, 0, 0)))
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
    one = await gateway(STEADY)
    held = [await one.reserve(100) for _ in range(5)]
    client.client_kill_filter(_type="normal", skipme=True)
    await eventually(lambda: one.wire is None or one.wire.lost.done())
    for each in held:
        each.settle(20, 0, 0)
    await eventually(lambda: one.store.ready() is None)
    assert await one.level(STEADY) == 900


async def test_a_key_of_a_wrong_type_is_one_tenants_trouble(gateway: Factory, client: Any) -> None:
    one = await gateway(HUNDRED)
    client.rpush("headrace:{acme}:hundred:requests:acme", "x")
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
    assert (await one.reserve()).degraded
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
    assert any(why in one.store.ready() for why in ("max_clients", "lost"))
    assert "never reached" in one.limiter.ready()
    assert await one.granted()


async def test_a_password_is_needed_and_given(
    gateway: Factory, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.config_set("requirepass", "hunter2")
    monkeypatch.setenv("LIMITS_PASSWORD", "hunter2")
    without = await gateway(HUNDRED)
    assert "(auth)" in without.limiter.ready()
    with_it = await gateway(HUNDRED, password=Secret("env:LIMITS_PASSWORD"))
    assert with_it.store.ready() is None
    assert "hunter2" not in repr(with_it.store)


async def test_closing_sends_the_last_settles(gateway: Factory) -> None:
    one, other = await gateway(STEADY), await gateway(STEADY)
    (await one.reserve(800)).settle(50, 0, 0)
    await one.limiter.close()
    assert await other.level(STEADY) == 950


async def test_a_user_of_the_access_list_logs_in_by_name(
    gateway: Factory, client: Any, valkey: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And may do no more than the limits need."""
    rules = ["~headrace:*", "+eval", "+evalsha", "+script|load", "+ping", "+time"]
    rules += ["+@read", "+@write", "-@dangerous"]
    client.execute_command("ACL", "SETUSER", "limits", "on", ">hunter2", *rules)
    monkeypatch.setenv("LIMITS_PASSWORD", "hunter2")
    url = f"unix://limits@{valkey.socket_path}"
    one = await gateway(STEADY, STREAMS, url=url, password=Secret("env:LIMITS_PASSWORD"))
    assert one.store.ready() is None
    (await one.reserve(100)).settle(50, 0, 0)
    assert await one.levels() == [950, 3]


async def test_a_script_that_is_flushed_all_the_time_is_no_failure(
    gateway: Factory, client: Any
) -> None:
    one = await gateway(Rule(name="many", limit=1000, window="day"))
    stop = asyncio.Event()

    async def flush() -> None:
        while not stop.is_set():
            client.script_flush()
            await asyncio.sleep(0.001)

    flushing = asyncio.ensure_future(flush())
    for _ in range(50):
        granted = await asyncio.gather(*[one.granted() for _ in range(4)])
        assert all(granted)
    stop.set()
    await flushing
    assert one.decisions(one.rules[0], "granted") == 200
    assert await one.level(one.rules[0]) == 800


def lapse(client: Any, reservation: Any) -> None:
    """As if its lease were over."""
    name = reservation._charge.id
    client.zadd("headrace:{acme}:leases", {name: 1})
    client.zadd("headrace:{acme}:streams:concurrent:acme", {name: 1}, xx=True)
