"""Two tries for one answer, whatever becomes of either."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from fakes import (
    DONE,
    EVENT,
    JSON_HEADERS,
    OVERLOADED,
    SSE_HEADERS,
    USAGE_EVENT,
    FakeExchange,
    FakeHealth,
    FakePool,
    FakeRouter,
    FakeUpstream,
    Timeouts,
    request,
)

from core import tasks
from core.errors import GatewayError, UpstreamError, UpstreamReset, UpstreamUnreachable
from core.metrics import Metrics
from core.prompt import Prompt
from proxy.access_log import AccessRecord
from proxy.delivery import Delivery
from proxy.dispatch import Dispatcher
from proxy.flow import Watchdog
from proxy.hedge import Hedging, Race
from proxy.lateness import Lateness
from ratelimit.estimate import Estimates

LOST = UpstreamReset("lost", reused=False, answered=True)


@dataclass
class Settings:
    after_s: float | None = 1.0
    after_p95_factor: float | None = None


class Budget:
    def __init__(self, allowed: int = 100) -> None:
        self.allowed = allowed

    def started(self, now: float) -> None:
        pass

    def take(self, now: float) -> bool:
        self.allowed -= 1
        return self.allowed >= 0


def silent(upstream: FakeUpstream) -> None:
    """A replica that says nothing until the test does."""


class Setting:
    """A dispatcher whose replicas are driven by the test; `late` is when the first one is late."""

    def __init__(self, *scripts: Any, replicas: int = 2, budget: int = 100) -> None:
        self.pool = FakePool(*(scripts or (silent, silent)))
        self.router = FakeRouter(*[f"r{n}" for n in range(replicas)])
        self.health = FakeHealth()
        self.metrics = Metrics.private()
        self.watchdog = Watchdog()
        self.exchange = FakeExchange(request())
        self.record = AccessRecord(request_id="x")
        self.dispatcher = Dispatcher(
            router=self.router,
            pool=self.pool,
            health=self.health,
            budget=Budget(),
            max_tries=3,
            timeouts=Timeouts(),
            watchdog=self.watchdog,
            estimates=Estimates(512, 4096),
            clock=time.monotonic,
            metrics=self.metrics,
            hedging=Hedging(
                router=self.router,
                lateness=Lateness(Settings()),
                budget=Budget(budget),
                watchdog=self.watchdog,
                clock=time.monotonic,
                metrics=self.metrics,
            ),
        )
        self.delivery = Delivery(
            path=b"/v1/chat/completions",
            headers=(),
            body=b"{}",
            prompt=Prompt("m", 7, 7, True, (), 64),
            max_output_tokens=None,
            stream=True,
            strip_usage=True,
            own_headers=(),
        )
        deliver = self.dispatcher.deliver(self.exchange, self.delivery, self.record)
        self.task = asyncio.ensure_future(deliver)

    async def settle(self) -> Setting:
        for _ in range(6):
            await asyncio.sleep(0)
        return self

    async def late(self) -> Setting:
        await self.settle()
        for watched in [w for w in self.watchdog._watched if isinstance(w, Race)]:
            watched.on_deadline(watched.deadline_at)
        return await self.settle()

    def play(self, number: int, *parts: bytes, end: bool = False) -> None:
        handler = self.pool.connections[number].handler
        handler.on_head(200, SSE_HEADERS)
        for part in parts:
            handler.on_body(part)
        if end:
            handler.on_end()

    def results(self) -> dict[str, float]:
        names = ("won", "lost", "failed", "refused")
        return {
            name: value
            for name in names
            if (value := self.metrics.value("headrace_hedges_total", name))
        }

    async def outcome(self) -> GatewayError | None:
        try:
            await self.task
        except GatewayError as error:
            return error
        finally:
            assert self.router.held == 0
            assert len(self.watchdog) == 0
            assert tasks.running("hedge") == []
        return None


async def test_one_that_is_in_time_has_no_second_try() -> None:
    s = await Setting().settle()
    s.play(0, EVENT, DONE, end=True)
    assert await s.outcome() is None
    assert len(s.pool.connections) == 1
    assert s.results() == {}


async def test_the_second_wins_and_the_first_is_cancelled_at_once() -> None:
    s = await Setting().late()
    assert (s.router.held, s.pool.asked) == (2, [("r0", False), ("r1", False)])
    s.play(1, EVENT)
    assert s.pool.connections[0].aborted, "in the same call"
    s.pool.connections[0].handler.on_body(EVENT)  # what was on its way
    await s.settle()
    assert s.router.held == 1
    assert s.dispatcher.relayed_tokens(s.delivery) == 1
    assert s.exchange.source is s.delivery.relay
    s.play(1, EVENT, USAGE_EVENT, DONE, end=True)
    assert await s.outcome() is None
    assert s.exchange.body == EVENT * 2 + DONE
    assert (s.record.replica, s.record.tries, s.record.status) == ("r1", 2, 200)
    assert (s.delivery.prompt_tokens, s.delivery.output_tokens) == (7, 3)
    assert [lease.settled for lease in s.router.leases] == [None, (7, 4, 3)]
    assert (s.health.good, s.health.bad) == (["r1"], [])
    assert s.results() == {"won": 1}


async def test_the_first_wins_and_the_second_is_cancelled_at_once() -> None:
    s = await Setting().late()
    s.play(0, EVENT)
    assert s.pool.connections[1].aborted
    s.pool.connections[1].handler.on_body(EVENT)
    await s.settle()
    assert s.router.held == 1
    s.play(0, USAGE_EVENT, DONE, end=True)
    assert await s.outcome() is None
    assert s.exchange.body == EVENT + DONE
    assert (s.record.replica, s.record.tries) == ("r0", 2)
    assert [lease.settled for lease in s.router.leases] == [(7, 4, 3), None]
    assert (s.health.good, s.health.bad) == (["r0"], [])
    assert s.results() == {"lost": 1}


async def test_both_answer_in_one_pass_of_the_loop() -> None:
    s = await Setting().late()
    s.play(1, EVENT)
    s.play(0, EVENT, DONE, end=True)
    s.play(1, DONE, end=True)
    assert await s.outcome() is None
    assert s.exchange.body == EVENT + DONE
    assert s.record.replica == "r1"


async def test_a_first_that_fails_leaves_it_to_the_second() -> None:
    s = await Setting().late()
    s.pool.connections[0].handler.on_failed(LOST)
    await s.settle()
    assert (s.health.bad, s.router.held) == (["r0"], 1)
    s.play(1, EVENT, DONE, end=True)
    assert await s.outcome() is None
    assert s.exchange.body == EVENT + DONE
    assert (s.health.good, s.health.bad, s.record.replica) == (["r1"], ["r0"], "r1")


async def test_a_second_that_fails_leaves_it_to_the_first() -> None:
    s = await Setting().late()
    s.play(1, OVERLOADED, DONE, end=True)
    await s.settle()
    assert s.health.bad == ["r1"]
    assert s.delivery.relay is not None
    s.play(0, EVENT, DONE, end=True)
    assert await s.outcome() is None
    assert (s.health.good, s.health.bad) == (["r0"], ["r1"])
    assert s.results() == {"failed": 1}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_when_both_fail_a_third_is_tried(order: Sequence[int]) -> None:
    s = await Setting(silent, silent, silent, replicas=3).late()
    for number in order:
        s.pool.connections[number].handler.on_failed(LOST)
        await s.settle()
    assert [lease.replica.id for lease in s.router.leases] == ["r0", "r1", "r2"]
    s.play(2, EVENT, DONE, end=True)
    assert await s.outcome() is None
    assert sorted(s.health.bad) == ["r0", "r1"]


async def test_a_winner_that_dies_ends_the_answer_and_only_it_is_to_blame() -> None:
    s = await Setting().late()
    s.play(1, EVENT)
    s.pool.connections[1].handler.on_failed(LOST)
    assert await s.outcome() is LOST
    assert s.exchange.ended == "aborted"
    assert (s.health.bad, s.record.replica) == (["r1"], "r1")
    assert s.delivery.begun


async def test_a_refusal_of_the_request_decides_as_well() -> None:
    s = await Setting().late()
    handler = s.pool.connections[1].handler
    handler.on_head(400, JSON_HEADERS)
    handler.on_body(b'{"error":{}}')
    handler.on_end()
    assert s.pool.connections[0].aborted
    assert await s.outcome() is None
    assert (s.exchange.status, s.health.good) == (400, ["r1"])
    assert not s.delivery.begun


def hanging(released: asyncio.Event) -> Callable[..., Any]:
    async def connect(self: FakePool, replica_id: str, fresh: bool = False) -> FakeUpstream:
        if replica_id == "r0":
            await released.wait()
        return await original(self, replica_id, fresh)

    original = FakePool.connect
    return connect


@pytest.mark.parametrize("connects", [True, False])
async def test_a_first_that_hangs_in_connecting(
    monkeypatch: pytest.MonkeyPatch, connects: bool
) -> None:
    released = asyncio.Event()
    monkeypatch.setattr(FakePool, "connect", hanging(released))
    scripts = [silent, silent if connects else UpstreamUnreachable("no")]
    s = await Setting(*scripts).late()
    s.play(0, EVENT)  # of the second try, whose connection is the first one made
    released.set()
    await s.settle()
    s.play(0, DONE, end=True)
    assert await s.outcome() is None
    assert s.exchange.body == EVENT + DONE
    assert (s.record.replica, s.record.phase) == ("r1", "relay")
    assert s.health.bad == ([] if connects else ["r0"])
    assert all(connection.aborted for connection in s.pool.connections)


@pytest.mark.parametrize("begun", [False, True])
async def test_a_client_that_leaves_ends_both(begun: bool) -> None:
    s = await Setting().late()
    if begun:
        s.play(1, EVENT)
    s.exchange.gone = True
    s.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await s.outcome()
    assert all(connection.aborted for connection in s.pool.connections)
    assert s.exchange.ended is None


@pytest.mark.parametrize("reason", ["budget", "no other", "others wait", "not streamed"])
async def test_when_there_is_no_second_try(reason: str) -> None:
    s = Setting(replicas=1 if reason == "no other" else 2, budget=0 if reason == "budget" else 9)
    if reason == "others wait":
        s.router.queues["m"] = object()
    s.delivery.stream = reason != "not streamed"
    await s.late()
    assert len(s.pool.connections) == 1
    assert s.results() == ({} if reason == "not streamed" else {"refused": 1})
    s.play(0, EVENT, DONE, end=True)
    assert await s.outcome() is None


async def test_what_the_client_was_sent_already_is_not_hedged() -> None:
    s = await Setting().settle()
    s.exchange.started = True
    await s.late()
    assert len(s.pool.connections) == 1
    s.pool.connections[0].handler.on_failed(LOST)
    assert isinstance(await s.outcome(), UpstreamError)
