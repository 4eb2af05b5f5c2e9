"""HTTP/2 by hand (RFC 9113): frames written as one likes, and those that came, taken apart."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

import hpack

from core.exchange import Header
from core.http2 import frames
from core.http2.frames import frame

PREFACE = frames.PREFACE
SETTINGS_ACK = frame(frames.SETTINGS, frames.ACK, 0)
POST: list[Header] = [
    (b":method", b"POST"),
    (b":scheme", b"https"),
    (b":authority", b"localhost"),
    (b":path", b"/v1/chat/completions"),
]
GET: list[Header] = [(b":method", b"GET"), *POST[1:3], (b":path", b"/v1/models")]


def settings(**values: int) -> bytes:
    """`settings(_4=0)`: INITIAL_WINDOW_SIZE of nothing."""
    pairs = ((int(name[1:]), value) for name, value in values.items())
    return frame(frames.SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


def data(stream_id: int, payload: bytes, *, end: bool = False) -> bytes:
    return frame(frames.DATA, frames.END_STREAM if end else 0, stream_id, payload)


def reset(stream_id: int, code: int = 8) -> bytes:
    return frame(frames.RST_STREAM, 0, stream_id, struct.pack(">I", code))


def window_update(stream_id: int, size: int) -> bytes:
    return frame(frames.WINDOW_UPDATE, 0, stream_id, struct.pack(">I", size))


def ping(payload: bytes = b"12345678", *, ack: bool = False) -> bytes:
    return frame(frames.PING, frames.ACK if ack else 0, 0, payload)


class Writer:
    """Encodes the header blocks of one connection."""

    def __init__(self) -> None:
        self._encoder = hpack.Encoder()

    def block(self, headers: Iterable[Header]) -> bytes:
        return self._encoder.encode(list(headers))

    def head(
        self, stream_id: int, headers: Iterable[Header], *, end: bool = False, more: bool = False
    ) -> bytes:
        flags = (frames.END_STREAM if end else 0) | (0 if more else frames.END_HEADERS)
        return frame(frames.HEADERS, flags, stream_id, self.block(headers))

    def request(self, stream_id: int, headers: Iterable[Header], body: bytes = b"") -> bytes:
        """A whole request; a body of up to 16,384 bytes."""
        head = self.head(stream_id, headers, end=not body)
        return head + data(stream_id, body, end=True) if body else head


@dataclass
class Frame:
    kind: int
    flags: int
    stream_id: int
    payload: bytes

    @property
    def code(self) -> int:
        """Of RST_STREAM and GOAWAY."""
        at = 4 if self.kind == frames.GOAWAY else 0
        return int.from_bytes(self.payload[at : at + 4], "big")

    @property
    def ends(self) -> bool:
        kinds = (frames.DATA, frames.HEADERS)
        return self.kind in kinds and bool(self.flags & frames.END_STREAM)


@dataclass
class Answer:
    """What came on one stream. `reset`: with which code; None if it was not."""

    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""
    complete: bool = False
    reset: int | None = None

    @property
    def status(self) -> int:
        return int(self.headers[b":status"])


class Reader:
    """Takes what a server sent apart. `frames` holds all of them, `answers` those by stream."""

    def __init__(self) -> None:
        self._rest = b""
        self._decoder = hpack.Decoder()
        self.frames: list[Frame] = []
        self.answers: dict[int, Answer] = {}

    def feed(self, received: bytes) -> list[Frame]:
        """The frames that are complete now."""
        self._rest += received
        found: list[Frame] = []
        while len(self._rest) >= 9:
            length = int.from_bytes(self._rest[:3], "big")
            if len(self._rest) < 9 + length:
                break
            kind, flags = self._rest[3], self._rest[4]
            stream_id = int.from_bytes(self._rest[5:9], "big")
            found.append(Frame(kind, flags, stream_id, self._rest[9 : 9 + length]))
            self._rest = self._rest[9 + length :]
        for one in found:
            self._note(one)
        self.frames += found
        return found

    def of(self, kind: int) -> list[Frame]:
        return [one for one in self.frames if one.kind == kind]

    def _note(self, one: Frame) -> None:
        answer = self.answers.setdefault(one.stream_id, Answer()) if one.stream_id else Answer()
        if one.kind == frames.HEADERS:
            assert one.flags & frames.END_HEADERS
            pairs = self._decoder.decode(one.payload, raw=True)
            answer.headers = {bytes(name): bytes(value) for name, value in pairs}
        elif one.kind == frames.DATA:
            answer.body += one.payload
        elif one.kind == frames.RST_STREAM:
            answer.reset = one.code
        answer.complete = answer.complete or one.ends
