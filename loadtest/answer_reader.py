"""One answer that streams events, read as it comes. Decides: `now` is an argument.

What is counted: a piece of content is an event with a non-empty text, reasoning or tool call. The
first event of a chat, a role without content, is none.
"""

from __future__ import annotations

import contextlib
from typing import Any

import httptools
import msgspec

_SHOWN = 200


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: Any = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


class Answer:
    """`complete` when it has ended, in whatever way. Whoever reads it sets `now`.

    Instants are those of `now`; 0 = never. `problem` is a kind of error, "" = none. `timing`: the
    milliseconds of each phase that the head's `Server-Timing` has.
    """

    def __init__(self, keep_text: bool = False) -> None:
        self._buffer = b""
        self._text: list[str] | None = [] if keep_text else None
        self._refusal = b""
        self._done = False
        self.now = 0.0
        self.status = 0
        self.complete = False
        self.keep_alive = False
        self.problem = ""
        self.detail = ""
        self.timing: dict[str, float] | None = None
        self.pieces = 0
        self.first_at = 0.0
        self.last_at = 0.0
        self.gaps: list[float] = []
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.status} pieces={self.pieces} {self.complete=}>"

    @property
    def text(self) -> str:
        return "".join(self._text or ())

    def lost(self) -> None:
        """The connection is gone."""
        if not self.complete:
            self.complete, self.keep_alive = True, False
            if self.status:
                self._judge()
            else:
                self.fail("reset", "the connection ended before the answer began")

    def on_field(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"server-timing":
            self.timing = {**(self.timing or {}), **parse_timing(value.decode("latin-1"))}

    def on_body(self, data: bytes) -> None:
        if self.status != 200:
            self._refusal = (self._refusal + data)[:_SHOWN]
            return
        text = self._buffer + data
        if b"\r" in text:  # JSON has none, so it is part of a line's end
            text = text.replace(b"\r\n", b"\n")
        *events, self._buffer = text.split(b"\n\n")
        for event in events:
            if event.startswith(b"data:"):
                self._on_event(event[5:].strip())
            elif b"data:" in event:
                self._on_event(event[event.index(b"data:") + 5 :].strip())

    def end(self, keep_alive: bool) -> None:
        """Its last byte has come."""
        self.complete, self.keep_alive = True, keep_alive
        self._judge()

    def fail(self, problem: str, detail: str = "") -> None:
        """The first one counts."""
        if not self.problem:
            self.problem, self.detail = problem, detail[:_SHOWN]

    # -- events ----------------------------------------------------------------------------------
    def _on_event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self._done = True
            return
        try:
            event = _decode(data)
        except msgspec.DecodeError as error:
            self.fail("protocol", str(error))
            return
        if event.error is not None:
            self.fail("error_event", str(event.error))
        if event.usage is not None:
            self._count(event.usage)
        for choice in event.choices:
            delta = choice.delta
            if delta is None:
                said = choice.text
            else:
                said = delta.content or delta.reasoning_content or delta.reasoning
                said = said or ("call" if delta.tool_calls else None)
            if said:
                self._on_piece(said)

    def _on_piece(self, said: str) -> None:
        now = self.now
        if self.pieces:
            self.gaps.append(now - self.last_at)
        else:
            self.first_at = now
        self.pieces += 1
        self.last_at = now
        if self._text is not None:
            self._text.append(said)

    def _count(self, usage: _Usage) -> None:
        self.prompt_tokens, self.output_tokens = usage.prompt_tokens, usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            self.cached_tokens = usage.prompt_tokens_details.cached_tokens or 0

    def _judge(self) -> None:
        if self.status != 200:
            self.fail(f"http_{self.status}", self._refusal.decode("utf-8", "replace"))
        elif not self._done:
            self.fail("truncated", "the answer ended without [DONE]")
        elif not self.pieces:
            self.fail("empty", "the answer had no content")


class AnswerReader(Answer):
    """By HTTP/1.1: feed it what is read."""

    def __init__(self, keep_text: bool = False) -> None:
        super().__init__(keep_text)
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes, now: float) -> None:
        self.now = now
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.fail("protocol", str(error))
            self.complete, self.keep_alive = True, False

    # -- httptools -------------------------------------------------------------------------------
    on_header = Answer.on_field

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status

    def on_message_complete(self) -> None:
        if self.status:  # not after an interim answer
            self.end(self._parser.should_keep_alive())


def parse_timing(value: str) -> dict[str, float]:
    """Milliseconds by name, of a `Server-Timing` header (W3C); entries without a duration are left
    out."""
    found = {}
    for entry in value.split(","):
        name, *parameters = entry.split(";")
        for parameter in parameters:
            key, _, duration = parameter.strip().partition("=")
            if key.lower() == "dur":
                with contextlib.suppress(ValueError):
                    found[name.strip()] = float(duration.strip('"'))
    return found
