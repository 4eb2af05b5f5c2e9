"""Watches a stream whose events have types, as those of Messages and Responses. Pure.

Every byte passes unchanged, event by event: of one that is cut in its middle the client sees
nothing (unless it is very long), or its SDK would fail to parse it before it comes to the error.
What is looked into are the events that a `Grammar` marks: those with usage, errors, and those that
end the stream. The type is that of the `event:` line, which these
APIs always send; only where a stream has none is it read from the data. Line ends inside JSON are
escaped, so a search for an `event:` line never finds text of an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from proxy.scanner import event_data, first_event_end
from proxy.surfaces.usage import usage_in

_LINE = b"event: "
_MAX_TAIL = 262_144  # the last event of Responses repeats the whole answer
_KEPT_START, _KEPT_END = 256, 16_384


@dataclass(frozen=True, slots=True)
class Grammar:
    """`delta` begins the usual event with content, and `delta_end` is how the `event:` line of all
    of them ends. `marks` are beginnings of `event:` lines that are looked into; `counting` types
    have usage, `final` ones end the stream, `failing` ones tell of a failure and end it too.
    `usage_of` finds usage in the document of an event, as `Shape.usage` words it, given what was
    known before; `error_of` the error in one that fails."""

    delta: bytes
    delta_end: bytes
    marks: tuple[bytes, ...]
    counting: frozenset[str]
    final: frozenset[str]
    failing: frozenset[str]
    usage_of: Callable[[dict[str, Any], dict[str, Any] | None], dict[str, Any] | None]
    error_of: Callable[[dict[str, Any]], dict[str, Any] | None]


def event_type(data: bytes) -> str:
    """The type of an event by its data; empty when there is none."""
    document = _parsed(data)
    kind = None if document is None else document.get("type")
    return kind if isinstance(kind, str) else ""


class TypedScanner:
    """State of one stream; the seam is `Scanner`. A failing event ends the stream: what the replica
    says after it is of no use to the client, who has read that the answer failed."""

    __slots__ = (
        "_delta",
        "_grammar",
        "_on_terminated",
        "_passing",
        "_tail",
        "_write",
        "error",
        "events",
        "terminated",
        "usage",
    )

    def __init__(
        self,
        grammar: Grammar,
        write: Callable[[bytes], None],
        on_terminated: Callable[[bytes], None],
        *,
        strip_usage: bool,
    ) -> None:
        self._grammar = grammar
        self._delta = grammar.delta
        self._write = write
        self._on_terminated = on_terminated
        self._tail = bytearray()  # an incomplete trailing event
        self._passing = False  # whether the client has been sent what there is of it
        self.events = 0
        self.terminated = False
        self.usage: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"<TypedScanner events={self.events} terminated={self.terminated}>"

    @property
    def mid_event(self) -> bool:
        return self._passing and bool(self._tail)

    def part(self) -> None:
        """Nothing more comes, and nothing more is written."""
        self._write = self._on_terminated = _nowhere

    def push(self, data: bytes) -> None:
        # By far most pushes are one event with a piece of text.
        if (
            not self._tail
            and data.startswith(self._delta)
            and data.find(b"\n\n") == len(data) - 2
            and not self.terminated
        ):
            self.events += 1
            self._write(data)
            return
        self.pass_on(self.judge(data))

    def pass_on(self, data: bytes) -> None:
        """What `judge` returned, on its way to the client."""
        if self.terminated:
            self._on_terminated(data)
        elif data:
            self._write(data)

    def judge(self, data: bytes) -> bytes:
        """Take note of these bytes; what of them may be relayed now."""
        if not self._tail and data[:7] == _LINE and data[-2:] == b"\n\n" and 13 not in data:
            events = data.count(b"\n\n")
            if data.count(b"\n\n" + _LINE) == events - 1 and not self._marked(data):
                self.events += data.count(self._grammar.delta_end)
                return data
        tail = self._tail
        looked_at = max(0, len(tail) - 3)
        tail += data
        out = data if self._passing else b""
        # A long event comes in many pieces, so it is not copied for each of them.
        if tail.find(b"\n\n", looked_at) >= 0 or tail.find(13, looked_at) >= 0:
            whole = bytes(tail)
            end = _last_boundary(whole)
            self._inspect(whole[:end])
            del tail[:end]
            if end:
                out = data[: len(data) - len(tail)] if self._passing else whole[:end]
                self._passing = False
        if len(tail) > _MAX_TAIL:
            if not self._passing:
                out += tail
                self._passing = True
            del tail[_KEPT_START:-_KEPT_END]
        return out

    def finish(self) -> bytes:
        """The stream has ended; some servers leave out the last empty line."""
        tail = bytes(self._tail)
        self._tail.clear()
        self._inspect(tail)
        return b"" if self._passing else tail

    def _marked(self, data: bytes) -> bool:
        for mark in self._grammar.marks:  # noqa: SIM110 - a generator costs more than the search
            if data.find(mark) >= 0:
                return True
        return False

    def _inspect(self, whole: bytes) -> None:
        start = 0
        while start < len(whole):
            end = first_event_end(whole, start)
            if end < 0:
                end = len(whole)
            self._look_at(whole[start:end].rstrip(b"\r\n"))
            start = end

    def _look_at(self, event: bytes) -> None:
        data = event_data(event)
        if data is None or self.terminated:
            return
        grammar = self._grammar
        if event.startswith(_LINE):
            kind = event.splitlines()[0][len(_LINE) :].strip().decode("latin-1")
        else:
            kind = event_type(data)
        if kind in grammar.counting or kind in grammar.final or kind in grammar.failing:
            document = _parsed(data)
            if document is None:  # too long to be kept whole
                usage = usage_in(data)
                document = {} if usage is None else {"usage": usage}
            self.usage = grammar.usage_of(document, self.usage)
        if kind in grammar.failing or (not kind and data.find(b'"error"') >= 0):
            self.error = grammar.error_of(_parsed(data) or {}) or self.error
            self.terminated = kind in grammar.failing or self.error is not None
        elif kind in grammar.final:
            self.terminated = True
        elif kind.endswith("delta") and kind not in grammar.counting:
            self.events += 1


def _nowhere(data: bytes) -> None:
    """Where a parted scanner writes."""


def _last_boundary(data: bytes) -> int:
    """Where the last complete event ends; 0 when there is none."""
    if 13 not in data:
        return data.rfind(b"\n\n") + 2 if b"\n\n" in data else 0
    end = 0
    while (following := first_event_end(data, end)) >= 0:
        end = following
    return end


def _parsed(data: bytes) -> dict[str, Any] | None:
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return document if isinstance(document, dict) else None
