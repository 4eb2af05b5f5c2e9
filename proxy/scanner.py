"""Watches a relayed SSE stream: event boundaries, the terminator, usage and errors.

Bytes pass through unchanged, except that with `strip_usage` the usage chunk that only the
gateway asked for is taken out. They pass event by event: of one that is cut in its middle the
client sees nothing (unless it is very long), or its SDK would fail to parse it before it comes to
the error that follows.
A chunk of whole events that carries neither usage, error nor `[DONE]` costs a few substring
searches and no parsing. Events end with an empty line of any line ending (WHATWG HTML, 9.2.6).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import orjson

_BOUNDARY = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\n))")
_DATA_LINE = re.compile(rb"^(?:\xef\xbb\xbf)?data:[ ]?(.*)$", re.MULTILINE)
_USAGE_OBJECT = re.compile(rb'"usage"\s*:\s*\{')  # a real member: in a string it is \"usage\"
_TEXT_KEYS = (b'"content":"', b'"text":"')
_LESSONS = 4  # how often a stream may change its form before it is no longer learned
_NEVER = -1  # no rest is so long: nothing is like the last event
_MAX_EVENT = 65_536  # what we look for (usage, error, [DONE]) is far smaller
_OVERLONG = b"data: ..."  # stands for the start of an event that is longer


def _nowhere(data: bytes) -> None:
    """Where a parted scanner writes."""


def event_data(event: bytes) -> bytes | None:
    """The data of one event without its ending, or None for a comment or an empty event."""
    if event[:6] == b"data: " and 10 not in event and 13 not in event:
        return event[6:]
    lines = _DATA_LINE.findall(event.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
    return b"\n".join(lines) if lines else None


def first_event_end(data: bytes, start: int = 0) -> int:
    """Where the first complete event from `start` ends (past its empty line), or -1."""
    if 13 not in data:
        end = data.find(b"\n\n", start)
        return -1 if end < 0 else end + 2
    match = _BOUNDARY.search(data, start)
    if match is None or (match.end() == len(data) and data.endswith(b"\r")):
        return -1  # a final CR may be half of a CRLF
    return match.end()


def error_in(data: bytes) -> dict[str, Any] | None:
    """The `error` object of an event's data, or None when it is not an error."""
    if data.find(b'"error"') < 0:
        return None
    return _error_of(_parse(data) or {})


def _error_of(document: dict[str, Any]) -> dict[str, Any] | None:
    error = document.get("error")
    if not error or document.get("choices"):
        return None
    return error if isinstance(error, dict) else {"message": str(error)}


def _parse(data: bytes) -> dict[str, Any] | None:
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return document if isinstance(document, dict) else None


class EventScanner:
    """State of one stream. `events` counts complete data events that may hold content.

    `write` takes what may be relayed. Once the terminator was seen `on_terminated` does instead,
    with what is left to relay.
    """

    __slots__ = (
        "_after",
        "_before",
        "_form",
        "_lessons",
        "_on_terminated",
        "_relayed",
        "_rest",
        "_strip",
        "_tail",
        "_text_at",
        "_write",
        "error",
        "events",
        "terminated",
        "usage",
    )

    def __init__(
        self,
        write: Callable[[bytes], None],
        on_terminated: Callable[[bytes], None],
        *,
        strip_usage: bool,
    ) -> None:
        self._write = write
        self._on_terminated = on_terminated
        self.events = 0
        self.terminated = False
        self.usage: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None
        self._strip = strip_usage
        self._tail = b""  # an incomplete trailing event
        # An event that is like the last one: see `_learn`. Nothing is, at first.
        self._before = self._after = b"\n"
        self._form = (self._before, self._after)
        self._text_at = 0
        self._rest = _NEVER
        self._lessons = _LESSONS
        self._relayed = 0  # how many bytes of the tail have been relayed: none or all

    def __repr__(self) -> str:
        return f"<EventScanner events={self.events} terminated={self.terminated}>"

    @property
    def mid_event(self) -> bool:
        """Whether the client has seen a part of an event that is not complete."""
        return self._relayed > 0

    @property
    def form(self) -> tuple[bytes, bytes] | None:
        """What stands before and after the text of an event like the last one, the same object
        until another is learned; None while none is known or an event is incomplete."""
        return None if self._tail or self._rest == _NEVER else self._form

    def part(self) -> None:
        """Nothing more comes, and nothing more is written."""
        self._write = self._on_terminated = _nowhere

    def push(self, data: bytes) -> None:
        """Take the next bytes of the stream: the hottest lines of the gateway."""
        # By far most pushes are one event that differs from the last one in its text alone: where
        # the text's first quote stands at its end, no other event and no other key is in between.
        if (
            data.startswith(self._before)
            and data.find(34, self._text_at) == len(data) - self._rest
            and data.endswith(self._after)
            and not self._tail
        ):
            self.events += 1
            self._write(data)
            return
        self.pass_on(self.judge(data))

    def pass_on(self, data: bytes) -> None:
        """What `judge` returned, on its way to the client."""
        if self.terminated:
            self._rest = _NEVER  # whatever follows comes by here too
            self._on_terminated(data)  # the client does not wait for the end of the framing
        elif data:
            self._write(data)

    def judge(self, data: bytes) -> bytes:
        """What of these bytes may be relayed now."""
        # Numbers and `find`, because `in` with bytes costs two to ten times as much.
        if self._tail or data[:7] != b"data: {" or data[-2:] != b"\n\n" or 13 in data:
            return self._push_slowly(data)
        if data.find(10) == len(data) - 2:  # one event
            if data.rfind(b'"usage"') < 0 and data.rfind(b'"error"') < 0:
                # The first one is often the role alone: none that follows is like it.
                if self.events and self._lessons:
                    self._learn(data)
                self.events += 1
                return data
            return b"" if self._look_at(data) else data
        return self._push_several(data)

    def _learn(self, event: bytes) -> None:
        """Remember what stands before and after the text of a plain event. Another event with the
        same bytes around a text without quotes has the same keys, so it is plain too (JSON has no
        bare line ends in a text): judging it costs a quarter."""
        self._lessons -= 1
        for key in _TEXT_KEYS:
            at = event.find(key)
            if at >= 0:
                start = at + len(key)
                end = event.find(b'"', start)
                if end < 0:  # no JSON: nothing to learn from
                    return
                self._form = self._before, self._after = event[:start], event[end:]
                self._text_at, self._rest = start, len(event) - end
                return

    def _push_several(self, data: bytes) -> bytes:
        """Whole events, of which at most one mentions usage, on one line; anything else goes the
        slow way."""
        events = data.count(b"\n\n")
        if data.count(b"\n\ndata: ") != events - 1 or data.rfind(b'"error"') >= 0:
            return self._push_slowly(data)
        start = end = 0
        usage = data.rfind(b'"usage"')
        if usage >= 0:
            start = data.rfind(b"\n\n", 0, usage)
            start = start + 2 if start >= 0 else 0
            end = data.find(b"\n\n", usage)
            if data.find(b'"usage"') != usage or data.find(10, start, end) >= 0:
                return self._push_slowly(data)
        # A line feed inside JSON is escaped, so this can only be the terminator itself.
        if data.rfind(b"\n\ndata: [DONE]") >= 0:
            self.terminated = True
            events -= data.count(b"\n\ndata: [DONE]")
        if usage < 0:
            self.events += events
            return data
        self.events += events - 1
        if self._look_into(data[start + 6 : end]):
            return data[:start] + data[end + 2 :]
        return data

    def finish(self) -> bytes:
        """The stream has ended: look at what came last, return what was held back. A final CR
        no longer waits for its LF, and some servers leave out the last empty line."""
        tail, self._tail = self._tail, b""
        return self._inspect(tail, self._relayed)

    def _push_slowly(self, data: bytes) -> bytes:
        joined = self._tail + data if self._tail else data
        end = _last_boundary(joined)
        whole, tail = joined[:end], joined[end:]
        out = self._inspect(whole, self._relayed)
        relayed = max(0, self._relayed - end)
        if relayed or len(tail) > _MAX_EVENT:
            out += tail[relayed:]
            relayed = len(tail)
        if len(tail) > _MAX_EVENT:  # nothing that we look for: only its end matters from here on
            tail = _OVERLONG + tail[-3:]
            relayed = len(tail)
        self._tail = tail
        self._relayed = relayed
        return out

    def _inspect(self, whole: bytes, relayed: int) -> bytes:
        """Look at each complete event. `relayed` bytes at the front have been sent before."""
        if events := _plain_events(whole):
            self.events += events
            return whole[relayed:]
        kept: list[bytes] = []
        start = 0
        while start < len(whole):
            end = first_event_end(whole, start)
            if end < 0:
                end = len(whole)
            event = whole[start:end]
            if self._look_at(event) and start >= relayed:
                event = b""
            kept.append(event[max(0, relayed - start) :])
            start = end
        return b"".join(kept)

    def _look_at(self, event: bytes) -> bool:
        """Take note of one event; True: it is the usage chunk that is to be stripped."""
        data = event_data(event.rstrip(b"\r\n"))
        if data is None:
            return False
        if data.startswith(b"[DONE]"):
            self.terminated = True
            return False
        if _USAGE_OBJECT.search(data) is None and data.find(b'"error"') < 0:
            self.events += 1
            return False
        return self._look_into(data)

    def _look_into(self, data: bytes) -> bool:
        """Take note of an event that mentions usage or an error; True as for `_look_at`."""
        document = _parse(data) or {}
        if error := _error_of(document):
            self.error = error
            return False
        choices = document.get("choices")
        usage = document.get("usage")
        if isinstance(usage, dict):
            self.usage = usage
            if not choices:
                return self._strip and choices == []
        self.events += 1
        return False


def _plain_events(whole: bytes) -> int:
    """How many events these are, if all of them have data and none needs a look; otherwise 0."""
    if whole[:5] != b"data:" or 13 in whole:
        return 0
    for sought in (b'"usage"', b"[DONE]", b'"error"'):
        if whole.find(sought) >= 0:
            return 0
    events = whole.count(b"\n\n")
    return events if whole.count(b"\n\ndata:") == events - 1 else 0


def _last_boundary(data: bytes) -> int:
    """Where the last complete event ends; 0 when there is none."""
    if 13 not in data:
        last = data.rfind(b"\n\n")
        return last + 2 if last >= 0 else 0
    end = 0
    while (following := first_event_end(data, end)) >= 0:
        end = following
    return end
