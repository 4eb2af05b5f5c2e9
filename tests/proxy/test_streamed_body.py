from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from fakes import DONE, EVENT, OVERLOADED, USAGE_EVENT
from hypothesis import given
from sse import PLACES, USAGE, Event, cut, streams

from core.errors import GatewayError, UpstreamError
from proxy.relay import Relay
from proxy.streamed_body import StreamedBody, upstream_stream_error
from proxy.token_gaps import BOUNDS, StreamGaps, TokenGaps

COMMENT = b": keep-alive\n\n"


class FakeRelay:
    """What the body does to its relay, in order; `told` are the calls, `written` the bytes."""

    def __init__(self, *, strip: bool = False) -> None:
        self.clock = 0.0
        self.heartbeat_at = 10.0
        self.told: list[str] = []
        self.written = b""
        self.error: GatewayError | None = None
        self.gaps = StreamGaps(TokenGaps(), self.now)
        self.body = StreamedBody(cast(Relay, self), strip_usage=strip, gaps=self.gaps)
        self._push: Callable[[bytes], None] = self.body.push

    def now(self) -> float:
        return self.clock

    def write(self, data: bytes) -> None:
        assert "start" in self.told
        assert data
        self.written += data

    def begin(self) -> None:
        self.told.append("begin")
        self.gaps.begin(self.clock)

    def start(self, length: int | None) -> None:
        assert length is None
        self.told.append("start")

    def use(self, push: Callable[[bytes], None]) -> None:
        self._push = push

    def deliver(self, data: bytes) -> None:
        assert "complete" not in self.told
        assert "start" in self.told
        self.told.append("complete")
        self.written += data
        self._push = lambda data: None

    def fail(self, error: GatewayError) -> None:
        self.told.append("fail")
        self.error = error
        self._push = lambda data: None

    def take(self, *pieces: bytes, end: bool = False) -> FakeRelay:
        for piece in pieces:
            self._push(piece)
        if end and self.error is None and "complete" not in self.told:
            self.body.end()
        return self


def test_a_stream() -> None:
    relay = FakeRelay().take(EVENT, EVENT, DONE, end=True)
    assert relay.told == ["begin", "start", "complete"]
    assert relay.written == EVENT + EVENT + DONE
    assert (relay.body.events, relay.body.usage, relay.body.error) == (2, None, None)


@given(events=streams(), places=PLACES)
def test_any_split_gives_the_same_stream(events: list[Event], places: list[int]) -> None:
    events = [event for event in events if event.kind != "done"]
    events = [Event(EVENT, "content"), *events, Event(DONE, "done")]
    for strip in (False, True):
        pieces = cut(b"".join(event.raw for event in events), places)
        relay = FakeRelay(strip=strip).take(*pieces, end=True)
        kept = [event.raw for event in events if not strip or event.kind != USAGE]
        assert relay.written == b"".join(kept)
        assert relay.told == ["begin", "start", "complete"]


@pytest.mark.parametrize("step", [1, 5, 1000])
def test_comments_before_the_first_event_wait_for_it(step: int) -> None:
    data = COMMENT * 3 + EVENT
    pieces = cut(data, list(range(0, len(data), step)))
    relay = FakeRelay().take(*pieces[:-1])
    assert relay.told == []
    relay.take(pieces[-1], DONE, end=True)
    assert relay.told == ["begin", "start", "complete"]
    assert relay.written == data + DONE
    assert relay.body.events == 1


@pytest.mark.parametrize("before", [b"", COMMENT, COMMENT * 3, b"retry: 5\n\n", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("step", [1, 1000])
def test_an_error_at_the_start_is_the_answer(before: bytes, step: int) -> None:
    data = before + OVERLOADED + DONE
    relay = FakeRelay().take(*cut(data, list(range(0, len(data), step))), end=True)
    assert relay.told == ["fail"]
    assert relay.written == b""
    error = relay.error
    assert isinstance(error, UpstreamError)
    assert (error.status, error.reason, error.retryable) == (503, "upstream_overloaded", True)
    assert (error.message, error.retry_after_s) == ("The engine is busy.", 1.0)


def test_an_error_later_passes() -> None:
    relay = FakeRelay().take(EVENT, OVERLOADED, DONE, end=True)
    assert relay.told == ["begin", "start", "complete"]
    assert relay.written == EVENT + OVERLOADED + DONE
    assert relay.body.error is not None
    assert relay.body.events == 1


@pytest.mark.parametrize("strip", [False, True])
def test_a_due_heartbeat_sends_the_comments_first(strip: bool) -> None:
    relay = FakeRelay(strip=strip).take(COMMENT)
    relay.clock = 10.0
    relay.take(COMMENT[:4])
    assert relay.told == []  # not in the middle of one
    relay.take(COMMENT[4:])
    assert relay.told == ["start"]
    assert relay.written == COMMENT * 2
    relay.take(COMMENT + EVENT[:20])
    assert relay.told == ["start"]
    relay.take(EVENT[20:])
    assert relay.told == ["start", "begin"]
    relay.take(EVENT, DONE, end=True)
    assert relay.told == ["start", "begin", "complete"]
    assert relay.written == COMMENT * 3 + EVENT * 2 + DONE


def test_a_comment_and_the_first_event_in_one_read_after_a_heartbeat() -> None:
    relay = FakeRelay()
    relay.clock = 10.0
    relay.take(COMMENT, COMMENT + EVENT)
    assert relay.told == ["start", "begin"]


def test_an_error_after_a_heartbeat_passes() -> None:
    relay = FakeRelay()
    relay.clock = 10.0
    relay.take(COMMENT, OVERLOADED, DONE, end=True)
    assert relay.told == ["start", "begin", "complete"]
    assert relay.written == COMMENT + OVERLOADED + DONE
    assert relay.body.events == 0


@pytest.mark.parametrize("strip", [False, True])
@pytest.mark.parametrize("step", [999, 50_000, 1_000_000])
def test_a_first_event_of_any_size(strip: bool, step: int) -> None:
    """With `return_token_ids` the first event holds the whole prompt."""
    first = b'data: {"prompt_token_ids":[' + b"151643," * 50_000 + b'1],"choices":[{}]}\n\n'
    data = COMMENT + first + EVENT + USAGE_EVENT + DONE
    relay = FakeRelay(strip=strip).take(*cut(data, list(range(0, len(data), step))), end=True)
    assert sorted(relay.told) == ["begin", "complete", "start"]
    assert relay.written == data.replace(USAGE_EVENT, b"") if strip else relay.written == data
    assert relay.body.events == 2
    assert relay.body.usage is not None


def test_held_comments_are_bounded() -> None:
    relay = FakeRelay().take(*[COMMENT] * 6000)
    assert relay.told == ["start"]
    assert relay.written == COMMENT * 6000
    relay.take(EVENT)
    assert relay.told == ["start", "begin"]


@pytest.mark.parametrize(
    "data", [b"", COMMENT, EVENT[:9], COMMENT + EVENT[:-1], COMMENT + b"data: {}\n"]
)
def test_an_end_before_the_first_event_can_be_tried_elsewhere(data: bytes) -> None:
    relay = FakeRelay().take(*([data] if data else []), end=True)
    assert relay.told == ["fail"]
    assert isinstance(relay.error, UpstreamError)
    assert relay.error.retryable


@pytest.mark.parametrize("strip", [False, True])
@pytest.mark.parametrize("tail", [b"", COMMENT, EVENT[:30], b"data: [DON", b": data: [DONE]\n\n"])
def test_an_end_without_terminator_is_a_failure(strip: bool, tail: bytes) -> None:
    relay = FakeRelay(strip=strip).take(EVENT, *([tail] if tail else []), end=True)
    assert relay.told == ["begin", "start", "fail"]
    assert relay.written == EVENT + (tail if tail.endswith(b"\n\n") else b"")
    assert not relay.body.mid_event


@pytest.mark.parametrize("strip", [False, True])
@pytest.mark.parametrize("end", [b"data: [DONE]", b"data: [DONE]\n", DONE + b"\n", DONE + b": x"])
def test_the_last_event_is_never_lost(strip: bool, end: bytes) -> None:
    relay = FakeRelay(strip=strip).take(EVENT, end, end=True)
    assert relay.told == ["begin", "start", "complete"]
    assert relay.written in (EVENT + end, EVENT + DONE)


def test_what_comes_after_the_terminator_is_dropped() -> None:
    relay = FakeRelay().take(EVENT, DONE, EVENT, DONE, end=True)
    assert relay.told == ["begin", "start", "complete"]
    assert relay.written == EVENT + DONE
    relay = FakeRelay()
    relay.clock = 10.0
    relay.take(COMMENT, EVENT + DONE, EVENT, end=True)
    assert relay.told == ["start", "begin", "complete"]
    assert relay.written == COMMENT + EVENT + DONE


def test_a_stream_of_nothing_but_its_terminator() -> None:
    relay = FakeRelay(strip=True).take(DONE, end=True)
    assert relay.told == ["begin", "start", "complete"]
    assert relay.written == DONE
    assert relay.body.events == 0


def test_silent_events_begin_nothing() -> None:
    relay = FakeRelay().take(COMMENT, b"event: ping\n\n", b"id: 1\n\n", b"\n")
    assert relay.told == []


@pytest.mark.parametrize(
    ("error", "status", "retryable"),
    [
        ({"message": "a", "code": 503}, 503, True),
        ({"message": "a", "code": 500}, 500, True),
        ({"message": "a", "code": 400}, 400, False),
        ({"message": "a", "code": 404}, 404, False),
        ({"message": "a", "code": 401}, 502, True),
        ({"message": "a", "code": "invalid"}, 502, True),
        ({"message": None, "code": 200}, 502, True),
        ({}, 502, True),
    ],
)
def test_the_status_of_an_error_event(error: dict[str, Any], status: int, retryable: bool) -> None:
    failure = upstream_stream_error(error)
    assert (failure.status, failure.retryable) == (status, retryable)
    assert failure.message


@pytest.mark.parametrize("comments_first", [False, True])
def test_the_gaps_of_events_are_counted_from_the_second_one_on(comments_first: bool) -> None:
    relay = FakeRelay()
    if comments_first:
        relay.clock = relay.heartbeat_at
        relay.take(COMMENT)
    relay.take(EVENT + EVENT)
    for _ in range(6):
        relay.clock += 0.02
        relay.take(EVENT)
    relay.take(COMMENT)
    counted = {place: n for place, n in enumerate(relay.gaps.counts) if n}
    low, high = BOUNDS.index(0.02), BOUNDS.index(0.025)
    assert counted.pop(0) == 1
    assert counted.keys() <= {low, high}  # the clock is made of floats
    assert sum(counted.values()) == 6
