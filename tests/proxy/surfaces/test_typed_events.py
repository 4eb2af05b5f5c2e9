from __future__ import annotations

from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.surfaces.messages_shape import MESSAGES
from proxy.surfaces.responses_shape import RESPONSES
from proxy.surfaces.shape import Scanner, Shape


def event(document: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (document["type"].encode(), orjson.dumps(document))


TEXT = 'a "quoted" text\nevent: message_stop\ndata: {"type":"error"}\n\n'
MESSAGE = [
    event({"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 0}}}),
    event({"type": "content_block_start", "index": 0}),
    event({"type": "content_block_delta", "delta": {"text": TEXT}}),
    event({"type": "ping"}),
    event({"type": "content_block_delta", "delta": {"text": "more"}}),
    event({"type": "content_block_stop", "index": 0}),
    event({"type": "message_delta", "delta": {}, "usage": {"output_tokens": 3}}),
    event({"type": "message_stop"}),
]
RESPONSE = [
    event({"type": "response.created", "response": {"usage": None}}),
    event({"type": "response.output_text.delta", "delta": TEXT}),
    event({"type": "response.function_call_arguments.delta", "delta": "{"}),
    event({"type": "response.output_text.done", "text": TEXT}),
    event(
        {
            "type": "response.completed",
            "response": {"usage": {"input_tokens": 9, "output_tokens": 3}},
        }
    ),
]
STREAMS = [(MESSAGES, MESSAGE), (RESPONSES, RESPONSE)]


class Watch:
    """A scanner and what it was let through."""

    def __init__(self, shape: Shape) -> None:
        self.written = b""
        self.delivered: bytes | None = None
        self.scanner: Scanner = shape.scanner(self._write, self._deliver, strip_usage=False)

    def _write(self, data: bytes) -> None:
        assert self.delivered is None
        self.written += data

    def _deliver(self, data: bytes) -> None:
        if self.delivered is None:
            self.delivered = data

    def take(self, *pieces: bytes) -> Scanner:
        for piece in pieces:
            self.scanner.push(piece)
        return self.scanner

    @property
    def seen(self) -> bytes:
        return self.written + (self.delivered or b"")


@pytest.mark.parametrize(("shape", "stream"), STREAMS)
def test_a_whole_stream(shape: Shape, stream: list[bytes]) -> None:
    watch = Watch(shape)
    scanner = watch.take(*stream)
    assert watch.seen == b"".join(stream)
    assert watch.delivered == stream[-1]
    assert scanner.events == 2
    assert scanner.error is None
    assert scanner.usage is not None
    assert scanner.usage["prompt_tokens"] == 9
    assert scanner.usage["completion_tokens"] == 3
    assert not scanner.mid_event


@pytest.mark.parametrize(("shape", "stream"), STREAMS)
@given(cuts=st.lists(st.integers(0, 900)), ending=st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_it_is_the_same_however_the_bytes_come(
    shape: Shape, stream: list[bytes], cuts: list[int], ending: bytes
) -> None:
    whole = b"".join(stream).replace(b"\n", ending)
    places = sorted({0, len(whole), *[cut for cut in cuts if cut < len(whole)]})
    watch = Watch(shape)
    pieces = [whole[a:b] for a, b in pairwise(places)]
    scanner = watch.take(*pieces)
    last = scanner.finish()
    assert watch.seen + last == whole
    assert scanner.terminated
    assert scanner.events == 2
    assert scanner.usage is not None
    assert scanner.usage["completion_tokens"] == 3


@pytest.mark.parametrize(("shape", "stream"), STREAMS)
@pytest.mark.parametrize("together", [True, False])
def test_without_its_last_event_it_is_not_over(
    shape: Shape, stream: list[bytes], together: bool
) -> None:
    watch = Watch(shape)
    cut = stream[:-1]
    scanner = watch.take(b"".join(cut)) if together else watch.take(*cut)
    assert scanner.finish() == b""
    assert not scanner.terminated
    assert watch.seen == b"".join(cut)
    assert scanner.events == 2


@pytest.mark.parametrize(
    ("shape", "failure"),
    [
        (MESSAGES, event({"type": "error", "error": {"type": "api_error", "message": "m"}})),
        (MESSAGES, b'data: {"error": {"message": "m", "code": 500}}\n\n'),
        (RESPONSES, event({"type": "error", "code": "server_error", "message": "m"})),
        (RESPONSES, event({"type": "response.failed", "response": {"error": {"message": "m"}}})),
        (RESPONSES, b'data: {"error": {"message": "m", "code": 500}}\n\n'),
    ],
)
def test_an_error_of_the_replica_ends_the_stream(shape: Shape, failure: bytes) -> None:
    watch = Watch(shape)
    scanner = watch.take((MESSAGE if shape is MESSAGES else RESPONSE)[1], failure)
    assert watch.delivered == failure
    assert scanner.error is not None
    assert scanner.error["message"] == "m"


def test_a_stream_without_event_lines_goes_by_its_types() -> None:
    watch = Watch(RESPONSES)
    scanner = watch.take(*[one[one.index(b"data: ") :] for one in RESPONSE])
    assert scanner.terminated
    assert scanner.events == 2


def test_of_an_incomplete_event_the_client_sees_nothing() -> None:
    watch = Watch(MESSAGES)
    scanner = watch.take(MESSAGE[2], MESSAGE[4][:30])
    assert not scanner.mid_event
    assert watch.written == MESSAGE[2]
    watch.take(MESSAGE[4][30:] + MESSAGE[5][:3])
    assert watch.written == MESSAGE[2] + MESSAGE[4]


def test_a_very_long_event_is_not_held_back() -> None:
    watch = Watch(MESSAGES)
    long = event({"type": "content_block_delta", "delta": {"text": "x" * 600_000}})
    scanner = watch.take(long[:300_000])
    assert scanner.mid_event
    assert watch.written == long[:300_000]
    watch.take(long[300_000:-1])
    assert watch.written == long[:-1]
    watch.take(b"\n" + MESSAGE[5][:3])
    assert not scanner.mid_event
    assert watch.written == long
    assert scanner.events == 1


def test_a_last_event_of_any_length_has_its_usage() -> None:
    usage = {"input_tokens": 9, "output_tokens": 3}
    last = event(
        {"type": "response.completed", "response": {"text": "x" * 600_000, "usage": usage}}
    )
    watch = Watch(RESPONSES)
    scanner = watch.take(*[last[at : at + 65_536] for at in range(0, len(last), 65_536)])
    assert watch.seen == last
    assert scanner.terminated
    assert scanner.usage is not None
    assert scanner.usage["completion_tokens"] == 3


def test_done_alone_ends_neither() -> None:
    for shape in (MESSAGES, RESPONSES):
        scanner = Watch(shape).take(b"data: [DONE]\n\n")
        assert not scanner.terminated


def test_parted_it_writes_nowhere() -> None:
    watch = Watch(MESSAGES)
    watch.scanner.part()
    watch.take(*MESSAGE)
    assert watch.seen == b""
