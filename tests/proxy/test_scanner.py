from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scanning import Collected, scan
from sse import CONTENT, DONE, ERROR, PLACES, USAGE, Event, cut, streams

from proxy.scanner import error_in, event_data, first_event_end

BOM = b"\xef\xbb\xbf"


def joined(events: list[Event]) -> bytes:
    return b"".join(event.raw for event in events)


@given(events=streams(), places=PLACES, strip=st.booleans())
def test_everything_passes_but_the_usage_chunk(
    events: list[Event], places: list[int], strip: bool
) -> None:
    out, scanner = scan(cut(joined(events), places), strip=strip)
    kinds = [event.kind for event in events]
    assert out == joined([event for event in events if not strip or event.kind != USAGE])
    assert scanner.terminated == (DONE in kinds)
    assert (scanner.error is not None) == (ERROR in kinds)
    assert scanner.events == kinds.count(CONTENT)
    assert (scanner.usage is not None) == (
        USAGE in kinds or any(b'"usage"' in e.raw and b"total_tokens" in e.raw for e in events)
    )


def test_one_read_with_fields_beside_the_data() -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":7}}\nid: 2\n\n'
    content = b'data: {"choices":[{"delta":{}}]}\nid: 1\n\n'
    for data, left in ((usage, b""), (content + usage, content), (content + content, None)):
        out, scanner = scan([data], strip=True)
        assert out == (data if left is None else left)
        assert scanner.usage == (None if left is None else {"prompt_tokens": 7})
        assert scanner.events == data.count(content)


def test_one_read_with_two_terminators() -> None:
    content = b'data: {"choices":[{"delta":{}}]}\n\n'
    out, scanner = scan([content + b"data: [DONE]\n\n" * 2], strip=True)
    assert out == content + b"data: [DONE]\n\n" * 2
    assert scanner.terminated
    assert scanner.events == 1


@given(events=streams((b"\n", b"\r\n")), more=st.integers(0, 60), places=PLACES)
def test_whole_events_alone_pass(events: list[Event], more: int, places: list[int]) -> None:
    data = joined(events)
    behind = b'data: {"choices":[{"text":"and so on, for long enough to be cut"}]}'[:more]
    for strip in (False, True):
        out, scanner = scan(cut(data + behind, places), strip=strip, finish=False)
        assert out == joined([e for e in events if e.kind != USAGE or not strip])
        assert not scanner.mid_event
        assert scanner.finish() == behind


@given(data=st.binary(max_size=200), places=PLACES)
def test_bytes_that_are_no_events_pass_too(data: bytes, places: list[int]) -> None:
    for strip in (False, True):
        assert scan(cut(data, places), strip=strip)[0] == data


@given(
    lines=st.lists(
        st.sampled_from([b"data: x", b"data:", b"", b"", b"\n", b"\r", b"\r\n", b":"]), max_size=20
    ),
    places=PLACES,
)
def test_line_ends_in_any_mixture_pass(lines: list[bytes], places: list[int]) -> None:
    data = b"".join(lines)
    for strip in (False, True):
        assert scan(cut(data, places), strip=strip)[0] == data


@pytest.mark.parametrize("strip", [False, True])
@pytest.mark.parametrize("size", [65_000, 65_536, 70_000, 300_000])
def test_an_event_of_any_size(strip: bool, size: int) -> None:
    big = b'data: {"choices":[{"text":"' + b"a" * size + b'data: [DONE]"}]}\n\n'
    usage = b'data: {"choices":[],"usage":{"completion_tokens":1}}\n\n'
    data = big + usage + b"data: [DONE]\n\n"
    for step in (1000, 16_384, 262_144):
        pieces = cut(data, list(range(0, len(data), step)))
        out, scanner = scan(pieces, strip=strip)
        assert out == data.replace(usage, b"") if strip else out == data
        assert scanner.usage == {"completion_tokens": 1}
        assert scanner.events == 1
        assert scanner.terminated


@pytest.mark.parametrize("strip", [False, True])
def test_what_is_held_is_bounded(strip: bool) -> None:
    collected = Collected(strip=strip)
    scanner = collected.scanner
    sent = received = 0
    for _ in range(40):
        sent += 4096
        received += len(collected.push(b"a" * 4096))
        assert sent - received <= 65_536
    assert scanner.mid_event
    scanner.push(b"\n\n")
    assert not scanner.mid_event
    assert not scanner.terminated


def test_the_client_is_inside_an_event_only_if_it_is_very_long() -> None:
    for strip in (False, True):
        scanner = Collected(strip=strip).scanner
        scanner.push(b"data: {")
        assert not scanner.mid_event
        scanner.push(b" " * 70_000)
        assert scanner.mid_event
        scanner.push(b"}\n\n")
        assert not scanner.mid_event


@pytest.mark.parametrize("end", [b"data: [DONE]", b"data: [DONE]\n", b"data: [DONE]\r\r"])
def test_the_terminator_counts_without_its_empty_line(end: bytes) -> None:
    for strip in (False, True):
        out, scanner = scan([b"data: {}\n\n", end[:5], end[5:]], strip=strip)
        assert out == b"data: {}\n\n" + end
        assert scanner.terminated


def test_a_usage_chunk_without_its_empty_line_is_stripped() -> None:
    usage = b'data: {"choices":[],"usage":{"completion_tokens":1}}'
    out, scanner = scan([b"data: {}\n\n", usage], strip=True)
    assert out == b"data: {}\n\n"
    assert scanner.usage == {"completion_tokens": 1}


@pytest.mark.parametrize(
    "data",
    [
        b'data: {"choices":[{"text":"[DONE]"}]}\n\n',
        b'data: "data: [DONE]"\n\n',
        b": data: [DONE]\n\n",
        b"event: [DONE]\n\n",
        b"data: x\ndata: [DONE]\n\n",
        b"xdata: [DONE]\n\n",
    ],
)
def test_what_is_not_the_terminator(data: bytes) -> None:
    assert not scan([data], strip=False)[1].terminated
    assert not scan(cut(data, list(range(100))), strip=True)[1].terminated


@pytest.mark.parametrize(
    "data",
    [
        b'{"choices":[{"delta":{}}],"usage":{"completion_tokens":1}}',
        b'{"choices":[],"usage":null}',
        b'{"usage":{"completion_tokens":1}}',
        b'{"choices":[],"text":"\\"usage\\":{}"}',
        b'{"choices":[],"usage":{"completion_tokens":1}',
        b'[{"choices":[],"usage":{"completion_tokens":1}}]',
    ],
)
def test_what_is_not_the_usage_chunk(data: bytes) -> None:
    event = b"data: " + data + b"\n\n"
    assert scan([event], strip=True)[0] == event
    assert scan([event, event[:9], event[9:]], strip=True)[0] == event * 2


def test_the_last_usage_counts() -> None:
    first = b'data: {"choices":[{}],"usage":{"completion_tokens":1}}\n\n'
    last = b'data: {"choices":[],"usage":{"completion_tokens":2}}\n\n'
    assert scan([first + last], strip=True)[1].usage == {"completion_tokens": 2}


def test_a_comment_before_an_event_in_one_read() -> None:
    assert scan([b": keep-alive\n\ndata: {}\n\n"], strip=False)[1].events == 1
    assert scan([b"data: {}\n\n: keep-alive\n\ndata: {}\n\n"], strip=True)[1].events == 2


# --- parts


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: a", b"a"),
        (b"data:a", b"a"),
        (b"data:  a", b" a"),
        (b"data:", b""),
        (b"data: a\ndata: b", b"a\nb"),
        (b"data: a\r\ndata: b\rdata:c", b"a\nb\nc"),
        (b"event: x\ndata: a\nid: 1", b"a"),
        (BOM + b"data: a", b"a"),
        (b": a", None),
        (b"event: data: a", None),
        (b" data: a", None),
        (b"", None),
    ],
)
def test_event_data(event: bytes, data: bytes | None) -> None:
    assert event_data(event) == data


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (b"a\n\nb", 3),
        (b"a\r\n\r\nb", 5),
        (b"a\r\rb", 3),
        (b"a\n\r\nb", 4),
        (b"a\r\n\nb", 4),
        (b"a\n\rb", 3),
        (b"a\n\n", 3),
        (b"a\r\n\r\n", 5),
        (b"a\r\r", -1),
        (b"a\r\n\r", -1),
        (b"a\n", -1),
        (b"a\r\nb\r\n", -1),
        (b"", -1),
    ],
)
def test_first_event_end(data: bytes, end: int) -> None:
    assert first_event_end(data) == end
    assert first_event_end(b"x" + data, 1) == (end + 1 if end >= 0 else -1)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b'{"error": {"message": "a", "code": 503}}', {"message": "a", "code": 503}),
        (b'{"error": "a"}', {"message": "a"}),
        (b'{"error": null, "choices": []}', None),
        (b'{"error": {"message": "a"}, "choices": [{}]}', None),
        (b'{"choices": [{"text": "\\"error\\": {}"}]}', None),
        (b'{"error": {', None),
        (b'["error"]', None),
    ],
)
def test_error_in(data: bytes, error: object) -> None:
    assert error_in(data) == error


def _delta(text: bytes, after: bytes = b"}]}") -> bytes:
    return (
        b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"'
        + text
        + b'"}'
        + after
        + b"\n\n"
    )


def test_events_that_differ_in_their_text_alone_are_judged_alike() -> None:
    collected = Collected(strip=True)
    scanner = collected.scanner
    texts = [
        b"a",
        b"",
        b"usage",
        b"error",
        b"[DONE]",
        b"\\n",
        b"\\\\",
        b'\\"usage\\":{}',
        b"b" * 500,
    ]
    for text in texts:
        assert collected.push(_delta(text)) == _delta(text)
    assert scanner.events == len(texts)
    assert (scanner.usage, scanner.error, scanner.terminated) == (None, None, False)


def test_nothing_is_learned_from_an_event_that_is_no_json() -> None:
    collected = Collected(strip=True)
    scanner = collected.scanner
    opening = b'data: {"choices":[{"delta":{"content":"'
    broken = opening + b"\n\n"
    assert collected.push(broken) == broken
    good = opening + b"x" * 100 + b'"}}]}\n\n' + b"data: [DONE]\n\n"
    assert collected.push(good) == good
    assert scanner.terminated


def test_an_event_of_another_form_is_looked_at_though_it_begins_alike() -> None:
    collected = Collected(strip=True)
    scanner = collected.scanner
    for text in (b"a", b"b"):
        collected.push(_delta(text))
    usage = b'}],"usage":{"prompt_tokens":1,"completion_tokens":2}}'
    for sneaky in (
        _delta(b"c", usage),
        _delta(b'c"}}],"usage":{"prompt_tokens":3},"x":[{"y":{"z":"'),
    ):
        scanner.usage = None
        assert collected.push(sneaky) == sneaky
        assert scanner.usage is not None
    alone = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":4}}\n\n'
    assert collected.push(alone) == b""
    assert scanner.usage == {"prompt_tokens": 4}
    two = _delta(b"d") + _delta(b"e")
    assert collected.push(two) == two
    assert scanner.events == 6
