"""What one HTTP/2 peer may cost: budgets for frames that are cheap to send and dear to handle.

The guard walks the headers of the frames that arrive, before the engine sees them, so it counts the
same whichever engine runs. Every budget is a bucket that leaks: a burst, and so many more a second.
They stand far above what honest clients do and below what hurts (CVE-2019-9512 to -9518,
CVE-2023-44487, CVE-2024-27316, CVE-2025-8671).

It also ends what libnghttp2 lets pass: a message on a stream that the client has ended or reset, or
has never opened and never can (RFC 9113 sections 5.1 and 5.1.1), and PRIORITY of no stream (6.3).
"""

from __future__ import annotations

from core.http2 import frames
from core.http2.engine import ErrorCode

_BURSTS: dict[int, tuple[str, int, float]] = {
    frames.PRIORITY: ("priority", 500, 20.0),
    frames.RST_STREAM: ("resets", 150, 5.0),
    frames.SETTINGS: ("settings", 50, 1.0),
    frames.PUSH_PROMISE: ("unknown", 100, 5.0),
    frames.PING: ("pings", 300, 10.0),
    frames.GOAWAY: ("goaways", 10, 1.0),
    frames.WINDOW_UPDATE: ("window_updates", 500, 50.0),
    frames.CONTINUATION: ("continuations", 100, 5.0),
}
_LARGEST_FRAME = 16_384  # no larger ones were announced (RFC 9113 section 4.2)
_PRIORITY_UPDATE = 0x10
_SMALL_BYTES = 64
_PADDING = 256  # at most so much of a padded frame is nothing
_PADDED = 0x8
_MOST_CONTINUATIONS = 8  # of one header block
_BYTES_PER_UPDATE = 32
"""A client may send a WINDOW_UPDATE for so many bytes that it was sent: two for each DATA frame."""
_HEADER_BURST, _HEADER_RATE = 4 * 1024 * 1024, 1024 * 1024.0
_HEADERS_FREE = 8_192
"""Header bytes of one request that count for nothing: a proxy in front may have thousands of
requests a second on one connection, each with a token of a kilobyte or two."""


class _Budget:
    """`name` is what is said when it is exceeded."""

    __slots__ = ("_at", "_burst", "_level", "_rate", "name")

    def __init__(self, name: str, burst: int, rate: float, now: float) -> None:
        self.name = name
        self._burst = burst
        self._rate = rate
        self._level = 0.0
        self._at = now

    def __repr__(self) -> str:
        return f"<_Budget {self.name} {self._level:.0f} of {self._burst}>"

    def spend(self, amount: int, now: float) -> bool:
        """Whether that was too much."""
        self._level += amount
        if self._level <= self._burst:
            return False
        # What has leaked counts only now: nothing is computed while there is room.
        self._level = max(0.0, self._level - self._rate * (now - self._at))
        self._at = now
        return self._level > self._burst

    def credit(self, amount: float) -> None:
        self._level = max(0.0, self._level - amount)


class FrameGuard:
    """Of one connection. `exceeded` names the first budget that was exceeded, "" while none was;
    `code` is what the client is told then.

    `block_since` is when a header block began that has not ended (0.0: none): no other frame may
    come meanwhile.
    """

    def __init__(self, *, max_header_bytes: int, now: float, preface: bool = True) -> None:
        self.exceeded = ""
        self.code = ErrorCode.ENHANCE_YOUR_CALM
        self.block_since = 0.0
        self._skip = len(frames.PREFACE) if preface else 0  # payload bytes still to come
        self._partial = b""  # of a frame header
        self._most_block = 2 * max_header_bytes
        self._block = 0
        self._continuations = 0
        self._credited = 0
        self._highest = 0  # stream that the client opened
        self._open: set[int] = set()  # those on which it may still send a message's frames
        by_name = {name: _Budget(name, burst, rate, now) for name, burst, rate in _BURSTS.values()}
        self._budgets = {kind: by_name[name] for kind, (name, _, _) in _BURSTS.items()}
        self._budgets[_PRIORITY_UPDATE] = by_name["priority"]
        self._unknown = by_name["unknown"]
        self._resets = by_name["resets"]
        self._updates = by_name["window_updates"]
        self._small = _Budget("small_data", 500, 50.0, now)
        self._headers = _Budget("header_bytes", _HEADER_BURST, _HEADER_RATE, now)

    def __repr__(self) -> str:
        return f"<FrameGuard exceeded={self.exceeded!r}>"

    def feed(self, data: bytes, now: float, sent: int) -> bool:
        """Judge what arrived; `sent` counts all bytes that were sent on the connection. False: a
        budget is exceeded, and the engine should not see it."""
        if self._partial:
            data = self._partial + data
        at, end = self._skip, len(data) - frames.HEADER_BYTES
        while at <= end:
            length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            if length > _LARGEST_FRAME:
                self.exceeded, self.code = "frame_size", ErrorCode.FRAME_SIZE_ERROR
                return False
            kind, flags = data[at + 3], data[at + 4]
            if kind <= frames.RST_STREAM:
                self._judge_state(kind, flags, int.from_bytes(data[at + 5 : at + 9], "big"))
            if kind <= frames.HEADERS:
                self._judge_message(kind, flags, length, now)
            else:
                self._judge_control(kind, flags, length, now, sent)
            if self.exceeded:
                return False
            at += frames.HEADER_BYTES + length
        rest = len(data) - at
        self._partial = data[at:] if rest > 0 else b""
        self._skip = -rest if rest < 0 else 0
        return True

    def count_reset(self, now: float) -> bool:
        """A stream was reset by us because of what the client did; see `feed`."""
        return self._spend(self._resets, 1, now)

    def count_header_bytes(self, size: int, now: float) -> bool:
        """A header block has this size after decompression; see `feed`."""
        if size > _HEADERS_FREE:
            self._spend(self._headers, size - _HEADERS_FREE, now)
        return not self.exceeded

    def _spend(self, budget: _Budget, amount: int, now: float) -> bool:
        if budget.spend(amount, now):
            self.exceeded = self.exceeded or budget.name
        return not self.exceeded

    def _judge_state(self, kind: int, flags: int, stream_id: int) -> None:
        """Of DATA, HEADERS, PRIORITY, RST_STREAM. A stream that we have reset stays open here: the
        client may not have heard of it. What comes on an idle stream is the engine's."""
        stream_id &= 0x7FFFFFFF  # without the reserved bit
        if self.block_since:
            return  # no frame may come here, whatever its stream
        if kind == frames.PRIORITY:
            if not stream_id:
                self.exceeded, self.code = "stream_state", ErrorCode.PROTOCOL_ERROR
        elif kind == frames.RST_STREAM:
            self._open.discard(stream_id)
        elif stream_id > self._highest:
            if kind == frames.HEADERS:
                self._highest = stream_id
                if not flags & frames.END_STREAM:
                    self._open.add(stream_id)
        elif stream_id in self._open:
            if flags & frames.END_STREAM:
                self._open.discard(stream_id)
        elif stream_id:
            self.exceeded, self.code = "stream_state", ErrorCode.STREAM_CLOSED

    def _judge_message(self, kind: int, flags: int, length: int, now: float) -> None:
        if kind == frames.HEADERS:
            self._block = length
            self._continuations = 0
            self.block_since = 0.0 if flags & frames.END_HEADERS else now
        elif not flags & frames.END_STREAM:
            useful = length - _PADDING if flags & _PADDED else length
            if useful < _SMALL_BYTES:
                self._spend(self._small, 1, now)

    def _judge_control(self, kind: int, flags: int, length: int, now: float, sent: int) -> None:
        budget = self._budgets.get(kind, self._unknown)
        if kind == frames.CONTINUATION:
            self._block += length
            self._continuations += 1
            if self._continuations > _MOST_CONTINUATIONS or self._block > self._most_block:
                self.exceeded = budget.name
            if flags & frames.END_HEADERS:
                self.block_since = 0.0
        elif kind == frames.WINDOW_UPDATE and sent > self._credited:
            budget.credit((sent - self._credited) / _BYTES_PER_UPDATE)
            self._credited = sent
        self._spend(budget, 1, now)
