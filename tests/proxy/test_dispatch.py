from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest
from fakes import (
    DONE,
    EVENT,
    OVERLOADED,
    USAGE_EVENT,
    FakeExchange,
    FakeHealth,
    FakePool,
    FakeRouter,
    FakeUpstream,
    Timeouts,
    lost,
    request,
    stream,
    whole,
)
from running import SHARED

from core.errors import Unavailable, UpstreamError, UpstreamReset, UpstreamUnreachable
from core.metrics import Metrics
from core.prompt import Prompt
from proxy.access_log import AccessRecord
from proxy.delivery import Delivery
from proxy.dispatch import Dispatcher
from proxy.flow import Watchdog
from proxy.turns import LARGE_BYTES
from ratelimit.estimate import Estimates


class Budget:
    def __init__(self, allowed: int = 100) -> None:
        self.allowed = allowed

    def started(self, now: float) -> None:
        pass

    def take(self, now: float) -> bool:
        self.allowed -= 1
        return self.allowed >= 0


class Setting:
    def __init__(self, pool: FakePool, *, replicas: int = 3, budget: int = 100) -> None:
        self.pool = pool
        self.router = FakeRouter(*[f"r{n}" for n in range(replicas)])
        self.health = FakeHealth()
        self.metrics = Metrics.private()
        self.watchdog = Watchdog()
        self.estimates = Estimates(512, 4096)
        self.exchange = FakeExchange(request())
        self.record = AccessRecord(request_id="x")
        self.dispatcher = Dispatcher(
            router=self.router,
            pool=pool,
            health=self.health,
            budget=Budget(budget),
            max_tries=3,
            timeouts=Timeouts(),
            watchdog=self.watchdog,
            estimates=self.estimates,
            clock=time.monotonic,
            metrics=self.metrics,
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
            empty_events=1,
        )

    async def run(self) -> Any:
        try:
            await self.dispatcher.deliver(self.exchange, self.delivery, self.record)
        except (UpstreamError, Unavailable) as error:
            return error
        finally:
            assert self.router.held == 0
            assert len(self.watchdog) == 0
        return None


async def test_counts_come_from_the_replicas_usage() -> None:
    s = Setting(FakePool(stream(EVENT, EVENT, USAGE_EVENT, DONE)))
    assert await s.run() is None
    assert s.exchange.body == EVENT + EVENT + DONE
    assert (s.delivery.prompt_tokens, s.delivery.output_tokens) == (7, 3)
    assert s.delivery.cached_tokens == 4
    assert s.router.leases[0].settled == (7, 4, 3)
    assert s.health.good == ["r0"]


@pytest.mark.parametrize(("size", "asked"), [(LARGE_BYTES - 1, [("r0", False)]), (LARGE_BYTES, [])])
async def test_a_large_request_is_chosen_for_and_sent_in_two_steps(
    size: int, asked: list[tuple[str, bool]]
) -> None:
    s = Setting(FakePool(stream(EVENT, DONE)))
    s.delivery.body = bytes(size)
    seen: list[list[tuple[str, bool]]] = []

    def on_lease(lease: object, number: int) -> None:
        asyncio.get_running_loop().call_soon(lambda: seen.append([*s.pool.asked]))

    s.router.on_lease = on_lease
    assert await s.run() is None
    assert seen == [asked]


@pytest.mark.parametrize("nonsense", [-1, True, 1.5, "12", None, [], 2**31 + 1, 10**30])
async def test_counts_that_cannot_be_are_not_believed(nonsense: Any) -> None:
    usage = {
        "prompt_tokens": nonsense,
        "completion_tokens": nonsense,
        "prompt_tokens_details": {"cached_tokens": nonsense},
    }
    s = Setting(FakePool())
    s.delivery.take_stock(usage, 4, s.estimates)
    assert (s.delivery.prompt_tokens, s.delivery.output_tokens) == (7, 3)
    assert s.delivery.cached_tokens is None


async def test_no_more_than_the_prompt_was_cached() -> None:
    s = Setting(FakePool())
    usage = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 10}}
    s.delivery.take_stock(usage, 1, s.estimates)
    assert s.delivery.cached_tokens == 9


async def test_streams_without_usage_are_counted_by_what_those_with_it_have_taught() -> None:
    s = Setting(FakePool(stream(EVENT, EVENT, EVENT, DONE)))
    s.delivery.take_stock({"completion_tokens": 300}, 101, s.estimates)
    assert await s.run() is None
    assert s.delivery.output_tokens == 6  # of three events the first holds no content


async def test_what_is_relayed_so_far_can_be_asked_while_it_runs() -> None:
    seen = []

    def play(upstream: FakeUpstream) -> None:
        seen.append(s.dispatcher.relayed_tokens(s.delivery))
        stream(EVENT, EVENT, EVENT)(upstream)
        seen.append(s.dispatcher.relayed_tokens(s.delivery))

    s = Setting(FakePool(play))
    await s.run()
    assert seen[0] == 0
    assert s.dispatcher.relayed_tokens(s.delivery) == 0


REFUSED = UpstreamUnreachable("refused")
OVERLOAD = stream(OVERLOADED, DONE)


@pytest.mark.parametrize(
    "first", [REFUSED, OVERLOAD, whole(503, b"{}"), whole(502, b""), stream(), stream(EVENT[:9])]
)
async def test_another_replica_is_tried_while_nothing_was_sent(first: Any) -> None:
    s = Setting(FakePool(first, stream(EVENT, DONE)))
    assert await s.run() is None
    assert s.exchange.body == EVENT + DONE
    assert [lease.replica.id for lease in s.router.leases] == ["r0", "r1"]
    assert (s.health.bad, s.health.good) == (["r0"], ["r1"])
    assert s.record.tries == 2


async def test_at_most_three_tries_and_the_last_failure_is_told() -> None:
    s = Setting(FakePool(REFUSED, REFUSED, OVERLOAD), replicas=5)
    error = await s.run()
    assert error.status == 503
    assert error.message == "The engine is busy."
    assert not s.exchange.started


async def test_with_no_other_replica_the_replicas_own_failure_is_told() -> None:
    s = Setting(FakePool(OVERLOAD), replicas=1)
    assert (await s.run()).message == "The engine is busy."


async def test_an_empty_budget_ends_the_retries() -> None:
    s = Setting(FakePool(REFUSED, stream(EVENT, DONE)), budget=0)
    assert await s.run() is REFUSED


async def test_nothing_is_retried_once_a_byte_was_sent() -> None:
    s = Setting(FakePool(stream(EVENT, EVENT[:20]), stream(EVENT, DONE)))
    assert isinstance(await s.run(), UpstreamError)
    assert s.exchange.ended == "aborted"
    assert s.delivery.begun
    assert len(s.pool.connections) == 1
    assert s.health.bad == ["r0"]


async def test_a_failure_after_the_first_event_settles_what_was_relayed() -> None:
    s = Setting(FakePool(stream(EVENT, EVENT, EVENT, end=True)))
    await s.run()
    assert (s.delivery.prompt_tokens, s.delivery.output_tokens) == (7, 2)
    assert s.router.leases[0].settled == (7, None, 2)


async def test_a_stale_connection_is_replaced_on_the_same_replica_without_a_try() -> None:
    reset = lost(UpstreamReset("gone", reused=True, answered=False))
    s = Setting(FakePool(reset, stream(EVENT, DONE), reused=True))
    assert await s.run() is None
    assert s.pool.asked == [("r0", False), ("r0", True)]
    assert s.health.bad == []
    assert s.record.tries == 1


async def test_a_fresh_connection_that_is_reset_too_counts_as_a_failure() -> None:
    reset = UpstreamReset("gone", reused=True, answered=False)
    again = UpstreamReset("gone", reused=False, answered=False)
    s = Setting(FakePool(lost(reset), lost(again), stream(EVENT, DONE), reused=True))
    assert await s.run() is None
    assert s.pool.asked == [("r0", False), ("r0", True), ("r1", False)]
    assert s.health.bad == ["r0"]


async def test_a_clients_error_is_an_answer_and_the_replica_is_healthy() -> None:
    s = Setting(FakePool(whole(400, b'{"error":{}}')))
    assert await s.run() is None
    assert s.exchange.status == 400
    assert not s.delivery.begun  # nothing to pay for
    assert s.health.good == ["r0"]


async def test_an_error_event_that_was_passed_on_is_the_replicas_failure() -> None:
    s = Setting(FakePool(stream(EVENT, OVERLOADED, DONE)))
    assert await s.run() is None
    assert s.health.bad == ["r0"]
    assert s.delivery.failure == "The engine is busy."


@pytest.mark.parametrize("after", [0, 1, 2])
async def test_cancellation_gives_everything_back(after: int) -> None:
    def play(upstream: FakeUpstream) -> None:
        upstream.handler.on_head(200, [(b"content-type", b"text/event-stream")])
        for _ in range(after):
            upstream.handler.on_body(EVENT)

    s = Setting(FakePool(play))
    task = asyncio.ensure_future(s.dispatcher.deliver(s.exchange, s.delivery, s.record))
    for _ in range(5):
        await asyncio.sleep(0)
    s.exchange.gone = True
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert s.pool.connections[0].aborted
    assert s.router.held == 0
    assert len(s.watchdog) == 0
    assert s.delivery.begun == (after > 0)


async def test_a_500_is_passed_on_and_is_the_replicas_failure() -> None:
    s = Setting(FakePool(whole(500, b'{"error":{"message":"oops"}}')))
    assert await s.run() is None
    assert s.exchange.status == 500
    assert s.health.bad == ["r0"]
    assert s.record.reason == "upstream_status_500"


async def test_the_phase_of_the_failure_is_told_when_no_replica_is_left() -> None:
    s = Setting(FakePool(REFUSED), replicas=1)
    assert await s.run() is REFUSED
    assert s.record.phase == "connect"


@pytest.mark.parametrize("first", [OVERLOAD, stream(EVENT, DONE)])
async def test_what_becomes_of_a_replica_that_has_left_concerns_nobody(first: Any) -> None:
    """Another one may have taken over its id meanwhile, and that one may be tried."""
    s = Setting(FakePool(first, stream(EVENT, DONE)), replicas=1)
    s.router.on_lease = lambda lease, n: setattr(lease, "outlived", n == 1)
    assert await s.run() is None
    if first is OVERLOAD:
        assert [lease.replica.id for lease in s.router.leases] == ["r0", "r0"]
        assert (s.health.bad, s.health.good) == ([], ["r0"])
    else:
        assert (s.health.bad, s.health.good) == ([], [])


FIXTURES = SHARED / "vllm" / "fixtures"


def events_of(path: Path) -> list[bytes]:
    """The data events of a captured chat with usage: one with the role, those with content, one or
    more that end it, usage, and the terminator."""
    body = path.read_bytes().partition(b"\r\n\r\n")[2]
    events = [line + b"\n\n" for line in body.splitlines() if line.startswith(b"data: ")]
    assert events[-1] == DONE
    return events


@pytest.mark.parametrize("frontend", ["", "rust"])
async def test_captured_streams_that_end_without_usage_are_counted_within_a_tenth(
    frontend: str,
) -> None:
    path = FIXTURES / frontend / "sse_chat_usage.bin"
    if not path.exists():
        pytest.skip("no captured streams beside the project")
    events = events_of(path)
    content = [event for event in events[1:] if b'"content":"' in event]
    rest = [event for event in events[1:-2] if event not in content]
    estimates = Estimates(512, 4096)

    async def answer(tokens: int, *end: bytes) -> Setting:
        repeated = [content[i % (len(content) - 1)] for i in range(tokens)]
        s = Setting(FakePool(stream(events[0], *repeated, *end)))
        s.dispatcher._estimates = estimates
        await s.run()
        return s

    for tokens in (5, 40, 12, 20, 7):
        usage = re.sub(rb'"completion_tokens":\d+', b'"completion_tokens":%d' % tokens, events[-2])
        s = await answer(tokens, *rest, usage, DONE)
        assert s.delivery.output_tokens == tokens
    cut = await answer(100)
    assert cut.exchange.ended == "aborted"
    assert 90 <= cut.delivery.output_tokens <= 110


async def test_each_try_has_the_body_that_its_replica_takes() -> None:
    class HandOver:
        def body(self, replica_id: str, sent: Delivery) -> bytes:
            assert sent is s.delivery
            return replica_id.encode()

    s = Setting(FakePool(whole(503, b"{}"), stream(EVENT, DONE)))
    s.dispatcher._hand_over = HandOver()  # type: ignore[assignment]
    assert await s.run() is None
    assert [c.sent[0][2] for c in s.pool.connections] == [b"r0", b"r1"]
