from __future__ import annotations

import asyncio

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

from core.errors import (
    GatewayError,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamReset,
    UpstreamTimeout,
)
from core.exchange import Header
from proxy.relay import Relay


class Setting:
    """One relay between a fake client and a fake replica."""

    def __init__(self, *, strip: bool = False, timeouts: Timeouts | None = None) -> None:
        self.exchange = FakeExchange(request())
        self.upstream = FakeUpstream()
        self.first: list[float] = []
        self.relay = Relay(
            self.exchange,
            stream=True,
            strip_usage=strip,
            own_headers=[(b"x-request-id", b"r")],
            on_first_event=self.first.append,
            timeouts=timeouts or Timeouts(),
        )
        self.task = asyncio.ensure_future(self.relay.wait(self.upstream))

    async def outcome(self) -> GatewayError | None:
        try:
            await self.task
        except GatewayError as error:
            return error
        return None


async def test_a_stream_is_relayed_byte_for_byte_and_write_for_read() -> None:
    s = Setting()
    await asyncio.sleep(0)
    s.relay.on_head(200, SSE_HEADERS)
    for part in (EVENT, EVENT, EVENT + EVENT, DONE):
        s.relay.on_body(part)
    s.relay.on_end()
    assert await s.outcome() is None
    assert s.exchange.body == EVENT * 4 + DONE
    assert s.exchange.writes == 4
    assert s.exchange.ended == "finished"
    assert len(s.first) == 1
    assert s.relay.content_events == 4


@pytest.mark.parametrize("headers", [SSE_HEADERS, JSON_HEADERS])
async def test_a_compressed_answer_is_a_fault_of_the_replica(headers: list[Header]) -> None:
    s = Setting()
    await asyncio.sleep(0)
    s.relay.on_head(200, [*headers, (b"content-encoding", b"GZIP")])
    s.relay.on_body(EVENT)
    s.relay.on_end()
    assert isinstance(await s.outcome(), UpstreamProtocolError)
    assert s.upstream.aborted
    assert s.exchange.body == b""


async def test_an_answer_that_says_that_it_is_plain_is_relayed() -> None:
    s = Setting()
    await asyncio.sleep(0)
    s.relay.on_head(200, [*SSE_HEADERS, (b"content-encoding", b"Identity")])
    s.relay.on_body(EVENT + DONE)
    s.relay.on_end()
    assert await s.outcome() is None
    assert s.exchange.body == EVENT + DONE


async def test_nothing_is_sent_before_the_first_event_is_complete() -> None:
    s = Setting()
    await asyncio.sleep(0)
    s.relay.on_head(200, SSE_HEADERS)
    s.relay.on_body(b": keep-alive\n\n")
    s.relay.on_body(EVENT[:50])
    assert not s.exchange.started
    assert s.first == []
    s.relay.on_body(EVENT[50:])
    assert s.exchange.body == b": keep-alive\n\n" + EVENT
    assert len(s.first) == 1
    s.task.cancel()


async def test_a_due_heartbeat_sends_comments_and_the_first_event_still_counts() -> None:
    s = Setting(timeouts=Timeouts(heartbeat_s=-1.0))
    await asyncio.sleep(0)
    s.relay.on_head(200, SSE_HEADERS)
    s.relay.on_body(b": keep-alive\n\n")
    assert s.exchange.body == b": keep-alive\n\n"
    assert s.first == []
    s.relay.on_body(EVENT)
    assert len(s.first) == 1
    s.relay.on_body(DONE)
    s.relay.on_end()
    assert await s.outcome() is None


async def test_an_error_in_the_first_event_leaves_the_client_untouched() -> None:
    s = Setting()
    await asyncio.sleep(0)
    s.relay.on_head(200, SSE_HEADERS)
    s.relay.on_body(OVERLOADED + DONE)
    s.relay.on_end()
    error = await s.outcome()
    assert isinstance(error, UpstreamError)
    assert error.status == 503
    assert error.retryable
    assert error.message == "The engine is busy."
    assert not s.exchange.started


async def test_an_error_of_the_request_in_the_first_event_is_not_retried() -> None:
    s = Setting()
    await asyncio.sleep(0)
    s.relay.on_head(200, SSE_HEADERS)
    s.relay.on_body(b'data: {"error": {"message": "bad", "code": 400}}\n\n')
    error = await s.outcome()
    assert isinstance(error, UpstreamError)
    assert (error.status, error.retryable) == (400, False)


async def test_a_later_error_event_passes_unchanged_and_is_noted() -> None:
    s = Setting()
    await asyncio.sleep(0)
    s.relay.on_head(200, SSE_HEADERS)
    for part in (EVENT, OVERLOADED, DONE):
        s.relay.on_body(part)
    s.relay.on_end()
    assert await s.outcome() is None
    assert s.exchange.body == EVENT + OVERLOADED + DONE
    assert s.relay.upstream_failure == "The engine is busy."


@pytest.mark.parametrize("cut", range(1, len(EVENT) + 1, 7))
async def test_a_stream_cut_anywhere_is_never_complete(cut: int) -> None:
    s = Setting()
    await asyncio.sleep(0)
    s.relay.on_head(200, SSE_HEADERS)
    s.relay.on_body(EVENT)
    s.relay.on_body(EVENT[:cut])
    s.relay.on_end()
    assert isinstance(await s.outcome(), UpstreamError)
    assert s.exchange.ended == "aborted"
    seen = EVENT if cut < len(EVENT) else EVENT * 2  # of the one that was cut, nothing
    assert s.exchange.body.startswith(seen)
    events = s.exchange.body.removeprefix(seen).split(b"\n\n")
    assert orjson.loads(events[0].removeprefix(b"data: "))["error"]["code"] == "upstream_error"
    assert events[1:] == [b""]
    assert b"[DONE]" not in s.exchange.body


async def test_the_usage_chunk_that_only_the_gateway_asked_for_is_taken_out() -> None:
    s = Setting(strip=True)
    await asyncio.sleep(0)
    s.relay.on_head(200, SSE_HEADERS)
    for part in (EVENT, EVENT + USAGE_EVENT[:30], USAGE_EVENT[30:] + DONE):
        s.relay.on_body(part)
    s.relay.on_end()
    assert await s.outcome() is None
    assert s.exchange.body == EVENT * 2 + DONE
    assert s.relay.usage is not None
    assert s.relay.usage["completion_tokens"] == 3


async def test_the_end_of_a_stripped_stream_that_was_cut_in_the_usage_chunk_is_an_error() -> None:
    s = Setting(strip=True)
    await asyncio.sleep(0)
    s.relay.on_head(200, SSE_HEADERS)
    s.relay.on_body(EVENT + USAGE_EVENT[:30])
    s.relay.on_end()
    assert isinstance(await s.outcome(), UpstreamError)
    assert s.exchange.body.startswith(EVENT + b"data: ")  # what was held is not shown


async def test_an_answer_in_one_piece_keeps_its_bytes_and_yields_its_usage() -> None:
    s = Setting()
    await asyncio.sleep(0)
    body = (
        b'{"id":"x","choices":[{"message":{"content":"\\"usage\\": {}"}}],'
        b'"usage":{"prompt_tokens":5}}'
    )
    s.relay.on_head(200, JSON_HEADERS)
    s.relay.on_body(body[:20])
    assert not s.exchange.started
    s.relay.on_body(body[20:])
    s.relay.on_end()
    assert await s.outcome() is None
    assert (s.exchange.body, s.exchange.length) == (body, len(body))
    assert s.relay.usage == {"prompt_tokens": 5}


@pytest.mark.parametrize(("status", "expected"), [(502, 502), (503, 503), (401, 502), (403, 502)])
async def test_statuses_that_are_the_replicas_failure(status: int, expected: int) -> None:
    s = Setting()
    await asyncio.sleep(0)
    s.relay.on_head(status, JSON_HEADERS)
    s.relay.on_body(b'{"error":{"message":"no"}}')
    s.relay.on_end()
    error = await s.outcome()
    assert isinstance(error, UpstreamError)
    assert error.status == expected
    assert error.retryable
    assert not s.exchange.started


async def test_a_clients_error_passes_as_the_replica_worded_it() -> None:
    s = Setting()
    await asyncio.sleep(0)
    body = b'{"error":{"message":"too long","type":"BadRequestError","code":400}}'
    s.relay.on_head(400, JSON_HEADERS)
    s.relay.on_body(body)
    s.relay.on_end()
    assert await s.outcome() is None
    assert (s.exchange.status, s.exchange.body) == (400, body)


async def test_deadlines_bound_the_first_token_and_the_silence_between_reads() -> None:
    s = Setting()
    await asyncio.sleep(0)
    due = s.relay.deadline_at
    s.relay.on_head(200, SSE_HEADERS)
    s.relay.on_body(EVENT)
    s.relay.on_body(EVENT)
    s.relay.on_deadline(due)  # bytes came since: not late
    assert s.relay.deadline_at == due + 5.0
    s.relay.on_deadline(due + 5.0)
    error = await s.outcome()
    assert isinstance(error, UpstreamTimeout)
    assert error.phase == "idle"
    assert s.upstream.aborted
    assert s.exchange.ended == "aborted"


async def test_no_first_token_in_time_leaves_the_client_untouched() -> None:
    s = Setting()
    await asyncio.sleep(0)
    s.relay.on_deadline(s.relay.deadline_at)
    error = await s.outcome()
    assert isinstance(error, UpstreamTimeout)
    assert error.phase == "first_token"
    assert s.upstream.aborted
    assert not s.exchange.started


async def test_a_cancelled_relay_aborts_upstream_and_cuts_the_client() -> None:
    s = Setting()
    await asyncio.sleep(0)
    s.relay.on_head(200, SSE_HEADERS)
    s.relay.on_body(EVENT)
    s.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await s.task
    assert s.upstream.aborted
    assert s.exchange.ended == "aborted"
    assert b"shutting down" in s.exchange.body


async def test_a_lost_connection_fails_once_and_later_bytes_are_ignored() -> None:
    s = Setting()
    await asyncio.sleep(0)
    s.relay.on_head(200, SSE_HEADERS)
    s.relay.on_body(EVENT)
    s.relay.on_failed(UpstreamReset("gone", reused=False, answered=True))
    sent = s.exchange.body
    s.relay.on_body(EVENT)
    s.relay.on_end()
    assert isinstance(await s.outcome(), UpstreamReset)
    assert s.exchange.body == sent


async def test_a_slow_client_pauses_the_replica() -> None:
    s = Setting()
    await asyncio.sleep(0)
    assert s.exchange.source is s.relay
    s.exchange.source.pause_reading()
    assert s.upstream.paused
    s.exchange.source.resume_reading()
    assert not s.upstream.paused
    s.task.cancel()


async def test_a_total_bound_ends_even_a_stream_that_flows() -> None:
    s = Setting(timeouts=Timeouts(idle_s=3.0, total_s=8.0))
    await asyncio.sleep(0)
    s.relay.on_head(200, SSE_HEADERS)
    s.relay.on_body(EVENT)
    for _ in range(3):
        s.relay.on_body(EVENT)
        s.relay.on_deadline(s.relay.deadline_at)
    error = await s.outcome()
    assert isinstance(error, UpstreamTimeout)
    assert error.phase == "total"


@pytest.mark.parametrize(
    ("factor", "predicted_s", "patience_s"), [(5, 1, 10), (5, 30, 150), (0, 9, 10)]
)
async def test_a_first_token_may_take_as_long_as_it_was_predicted_to(
    factor: float, predicted_s: float, patience_s: float
) -> None:
    timeouts = Timeouts(first_token_s=10.0, first_token_factor=factor)
    relay = Relay(
        FakeExchange(request()),
        stream=True,
        strip_usage=False,
        own_headers=[],
        on_first_event=lambda now: None,
        timeouts=timeouts,
        predicted_s=predicted_s,
    )
    assert relay.deadline_at - relay.now() == pytest.approx(patience_s, abs=1.0)


async def test_a_replica_that_does_not_end_its_framing_is_not_waited_for() -> None:
    s = Setting()
    await asyncio.sleep(0)
    s.relay.on_head(200, SSE_HEADERS)
    s.relay.on_body(EVENT)
    s.relay.on_body(DONE)
    assert s.exchange.ended == "finished"
    s.relay.on_deadline(s.relay.deadline_at)
    assert await s.outcome() is None
    assert s.upstream.aborted


async def test_comments_are_no_progress() -> None:
    s = Setting()
    await asyncio.sleep(0)
    before = s.relay.progress
    s.relay.on_head(200, SSE_HEADERS)
    begun = s.relay.progress
    assert begun > before
    s.relay.on_body(b": keep-alive\n\n")
    assert s.relay.progress == begun
    s.relay.on_body(EVENT)
    assert s.relay.progress > begun
    s.relay.on_body(EVENT)
    after = s.relay.progress
    s.relay.on_body(b": keep-alive\n\n")
    assert s.relay.progress == after
    s.relay.fail(UpstreamError("Enough."))
    await s.outcome()


async def test_an_answer_in_one_piece_makes_progress_with_each() -> None:
    s = Setting()
    await asyncio.sleep(0)
    s.relay.on_head(200, [(b"content-type", b"application/json")])
    seen = []
    for piece in (b'{"a":', b'"' + b"x" * 5_000_000, b'"}'):
        s.relay.on_body(piece)
        seen.append(s.relay.progress)
    assert seen == sorted(set(seen))
    s.relay.on_end()
    await s.outcome()
