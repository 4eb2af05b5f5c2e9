"""The short way of a stream from socket to socket: a read that is exactly one whole chunk, with an
event in it that is like the last one, goes to the client as it is, framing and all. Pure.

Everything else takes the ordinary way: llhttp, the relay, the exchange's own framing. The ordinary
way also has the proof that the short one may be taken. It is shown a read; if the body that llhttp
found in it is the read without the frame of one chunk, then the read began and ended between two
chunks, and llhttp need not see the next one if that, too, is one whole chunk.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from proxy.scanner import EventScanner
from proxy.token_gaps import BOUNDS, StreamGaps

_Known = dict[int, tuple[bytes, int, int]]

_MAX_FRAME = 8  # bytes around an event: two line ends and a size of four digits
_CLOSED: _Known = {}  # never written to


def _nowhere(data: bytes) -> None:
    """Where a parted passage writes."""


class Passage:
    """`events` and `body_bytes` count what passed by the short way. `take` gets each read of the
    replica's socket and hands to `read` what must go the ordinary way; the bodies found there come
    back by `push`."""

    __slots__ = (
        "_after",
        "_body",
        "_form",
        "_gaps",
        "_known",
        "_learned",
        "_scanner",
        "_send",
        "body_bytes",
        "events",
        "read",
    )

    def __init__(
        self, scanner: EventScanner, send: Callable[[bytes], object], gaps: StreamGaps
    ) -> None:
        self._scanner = scanner
        self._gaps = gaps
        self._send = send
        self.read: Callable[[bytes], object] = _nowhere
        # By the length of a read: what stands before the text of its event, where the text's end
        # is, and the length of the body.
        self._known = self._learned = _CLOSED
        self._form: tuple[bytes, bytes] | None = None
        self._after = b""
        self._body = b""
        self.events = 0
        self.body_bytes = 0

    def __repr__(self) -> str:
        return f"<Passage events={self.events} open={self._known is not _CLOSED}>"

    def take(self, data: bytes) -> None:
        """One read: the hottest lines of the gateway."""
        known = self._known.get(len(data))
        if known is not None:
            before, quote_at, size = known
            # One event that differs from the last one in its text alone: where the text's first
            # quote stands at its end, no other event and no other key is in between.
            if (
                data.startswith(before)
                and data.find(34, len(before)) == quote_at
                and data.endswith(self._after)
            ):
                self.events += 1
                self.body_bytes += size
                self._send(data)
                gaps = self._gaps  # `gaps.note(1)`, written out
                now = gaps.now()
                gaps.counts[bisect_left(BOUNDS, now - gaps.at)] += 1
                gaps.at = now
                return
        self._take_ordinarily(data)

    def push(self, body: bytes) -> None:
        """The body bytes of a read that took the ordinary way."""
        self._body = body
        scanner = self._scanner
        before = scanner.events
        scanner.push(body)
        if events := scanner.events - before:
            self._gaps.note(events)

    def part(self) -> None:
        """Nothing more comes."""
        self._known = _CLOSED
        self._send = self.read = _nowhere

    def _take_ordinarily(self, data: bytes) -> None:
        self._known = _CLOSED
        self._body = b""
        self.read(data)
        body = self._body
        # Several chunks have more framing than one, which saves the comparison.
        if not body or len(data) - len(body) > _MAX_FRAME:
            return
        if data != b"%x\r\n%b\r\n" % (len(body), body):
            return
        form = self._scanner.form
        if form is None:
            return
        if form is not self._form:
            self._form, self._after, self._learned = form, form[1] + b"\r\n", {}
        self._known = self._learned
        before, after = form
        if len(data) not in self._known and body.startswith(before) and body.endswith(after):
            opening = b"%x\r\n%b" % (len(body), before)
            self._known[len(data)] = opening, len(data) - len(self._after), len(body)
