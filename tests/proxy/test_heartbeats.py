"""Of the gateway's own comments: when the relay sends them, and when never."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import orjson
import pytest
from fakes import (
    DONE,
    EVENT,
    JSON_HEADERS,
    OVERLOADED,
    SSE_HEADERS,
    USAGE_EVENT,
    FakeExchange,
    FakeUpstream,
    Timeouts,
    request,
)

from core.errors import GatewayError, UpstreamTimeout
from proxy.heartbeats import COMMENT
from proxy.relay import Relay
from proxy.scanner import event_data, first_event_end


@dataclass
class Beats:
    interval_s: float = 2.0
    before_head: bool = False


class Setting:
    """A relay whose sweep is made by hand: `pass_time` looks whenever a look is due."""

    def __init__(
        self, *, before_head: bool = False, strip: bool = False, raw: bool = False
    ) -> None:
        self.exchange = FakeExchange(request())
        self.upstream = FakeUpstream()
        self.relay = Relay(
            self.exchange,
            stream=True,
            strip_usage=strip,
            own_headers=[(b"x-request-id", b"r")],
            on_first_event=lambda now: None,
            timeouts=Timeouts(),
            raw=raw,
            heartbeats=Beats(before_head=before_head),
        )
        self.now = self.relay.now()
        self.relay.now = lambda: self.now
        self.task = asyncio.ensure_future(self.relay.wait(self.upstream))

    def pass_time(self, seconds: float) -> bytes:
        """What the client got meanwhile."""
        before, end = len(self.exchange.body), self.now + seconds
        while self.relay.deadline_at <= end:
            self.now = max(self.now, self.relay.deadline_at)
            self.relay.on_deadline(self.now)
        self.now = end
        return self.exchange.body[before:]

    async def outcome(self) -> GatewayError | None:
        try:
            await self.task
        except GatewayError as error:
            return error
        return None


async def begun(**options: bool) -> Setting:
    s = Setting(**options)
    await asyncio.sleep(0)
    s.relay.on_head(200, SSE_HEADERS)
    s.relay.on_body(EVENT)
    return s


def test_it_is_an_event_without_data() -> None:
    assert first_event_end(COMMENT) == len(COMMENT)
    assert event_data(COMMENT.rstrip()) is None


async def test_silence_is_never_longer_than_the_interval() -> None:
    s = await begun()
    assert s.pass_time(1.9) == b""
    assert s.pass_time(0.1) == COMMENT
    assert s.pass_time(2.0) == COMMENT
    s.relay.on_body(EVENT)
    assert s.pass_time(1.5) == b""
    s.relay.on_body(EVENT + DONE)
    s.relay.on_end()
    assert await s.outcome() is None
    assert s.exchange.body.replace(COMMENT, b"") == EVENT * 3 + DONE


async def test_a_stream_that_flows_gets_none() -> None:
    s = await begun()
    for _ in range(40):
        assert s.pass_time(0.7) == b""
        s.relay.on_body(EVENT)
    s.task.cancel()


async def test_comments_do_not_keep_a_silent_replica_alive() -> None:
    s = await begun()
    s.pass_time(60.0)
    error = await s.outcome()
    assert isinstance(error, UpstreamTimeout)
    assert error.phase == "idle"
    assert s.exchange.body.count(COMMENT) == 2, "idle_s are five seconds"


@pytest.mark.parametrize("cut", range(1, len(EVENT), 9))
async def test_never_inside_an_event(cut: int) -> None:
    s = await begun()
    s.relay.on_body(EVENT[:cut])  # of which the client sees nothing yet
    assert s.pass_time(4.5) == COMMENT * 2
    s.relay.on_body(EVENT[cut:])
    assert s.pass_time(4.5) == COMMENT * 2
    assert s.exchange.body == (EVENT + COMMENT * 2) * 2
    s.task.cancel()


async def test_an_event_that_is_held_back_is_not_cut_by_one() -> None:
    s = await begun(strip=True)
    s.relay.on_body(USAGE_EVENT[:30])
    assert s.pass_time(2.5) == COMMENT
    s.relay.on_body(USAGE_EVENT[30:] + DONE)
    s.relay.on_end()
    assert await s.outcome() is None
    assert s.exchange.body == EVENT + COMMENT + DONE


async def test_before_the_head_there_is_none_unless_asked_for() -> None:
    s = Setting()
    await asyncio.sleep(0)
    s.pass_time(4.0)
    s.relay.on_head(200, SSE_HEADERS)
    s.pass_time(4.0)
    assert not s.exchange.started
    s.pass_time(4.0)
    error = await s.outcome()
    assert isinstance(error, UpstreamTimeout)
    assert error.phase == "first_token"
    assert not s.exchange.started


@pytest.mark.parametrize("head_after_s", [1.0, 3.0])
async def test_before_the_head_they_are_a_promise(head_after_s: float) -> None:
    s = Setting(before_head=True)
    await asyncio.sleep(0)
    s.pass_time(head_after_s)
    s.relay.on_head(200, SSE_HEADERS)
    s.pass_time(5.0 - head_after_s)
    assert (s.exchange.status, s.relay.status) == (200, 200)
    assert dict(s.exchange.headers)[b"content-type"].startswith(b"text/event-stream")
    assert dict(s.exchange.headers)[b"x-request-id"] == b"r"
    s.relay.on_body(EVENT)
    s.relay.on_body(DONE)
    s.relay.on_end()
    assert await s.outcome() is None
    assert s.exchange.body == COMMENT * 2 + EVENT + DONE


@pytest.mark.parametrize("status", [200, 400, 429, 503])
async def test_a_promise_that_is_broken_ends_as_an_event(status: int) -> None:
    s = Setting(before_head=True)
    await asyncio.sleep(0)
    s.pass_time(2.5)
    s.relay.on_head(status, JSON_HEADERS)
    s.relay.on_body(b'{"error":{"message":"no ')
    assert s.pass_time(2.5) == COMMENT
    s.relay.on_body(b'room"}}')
    s.relay.on_end()
    error = await s.outcome()
    assert error is not None
    assert error.status == (status if status >= 400 else 502)
    assert (s.relay.status, s.exchange.ended) == (200, "aborted")
    event = s.exchange.body.removeprefix(COMMENT * 2).removeprefix(b"data: ")
    assert orjson.loads(event)["error"]["message"] == "no room"


async def test_an_error_in_the_first_event_after_a_promise() -> None:
    s = Setting(before_head=True)
    await asyncio.sleep(0)
    s.relay.on_head(200, SSE_HEADERS)
    s.pass_time(2.5)
    s.relay.on_body(OVERLOADED + DONE)
    s.relay.on_end()
    error = await s.outcome()
    assert error is not None
    assert error.status == 503
    assert s.exchange.ended == "aborted"
    assert b"[DONE]" not in s.exchange.body


async def test_what_is_no_stream_gets_none() -> None:
    for raw in (True, False):
        s = Setting(raw=raw)
        await asyncio.sleep(0)
        s.relay.on_head(200, [(b"content-type", b"audio/wav" if raw else b"application/json")])
        s.relay.on_body(b"x" * 5 * 1024 * 1024)
        assert s.exchange.started
        assert s.pass_time(4.5) == b""
        s.task.cancel()
