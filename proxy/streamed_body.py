"""An SSE answer on its way to the client.

Held until the first complete `data:` event is there (HTTP 200 does not mean accepted: vLLM
answers 200 and then an error event when it is overloaded), then every read passes straight
through. A due heartbeat sends held comments early and so ends the retries. Events that a replica
sends before it has accepted the request count as comments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.errors import UpstreamAnswered, UpstreamError
from proxy.passage import Passage
from proxy.scanner import EventScanner, event_data, first_event_end
from proxy.surfaces.openai import OPENAI
from proxy.surfaces.shape import Shape
from proxy.token_gaps import StreamGaps, TokenGaps

if TYPE_CHECKING:
    from proxy.relay import Relay

_MAX_HELD = 65_536
FIRST_EVENTS = 10
"""When so many have come, the answer has begun for whoever listens to it."""


class StreamedBody:
    """The body of one SSE response."""

    __slots__ = ("_gaps", "_held", "_looked_at", "_passage", "_relay", "_scanner", "_shape")

    def __init__(
        self,
        relay: Relay,
        *,
        strip_usage: bool,
        shape: Shape = OPENAI,
        gaps: StreamGaps | None = None,
    ) -> None:
        self._relay = relay
        self._gaps = gaps or StreamGaps(TokenGaps(), relay.now)
        self._shape = shape
        self._scanner = shape.scanner(relay.write, relay.deliver, strip_usage=strip_usage)
        self._held = b""
        self._passage: Passage | None = None
        self._looked_at = 0  # comments at the front of what is held

    def __repr__(self) -> str:
        return f"<StreamedBody held={len(self._held)} {self._scanner!r}>"

    @property
    def usage(self) -> dict[str, Any] | None:
        return self._scanner.usage

    @property
    def error(self) -> dict[str, Any] | None:
        return self._scanner.error

    @property
    def events(self) -> int:
        passage = self._passage
        return self._scanner.events + (0 if passage is None else passage.events)

    @property
    def passed_bytes(self) -> int:
        """Body bytes that reached the client without its exchange."""
        return 0 if self._passage is None else self._passage.body_bytes

    @property
    def progress(self) -> int:
        """How many events have come. A server whose engine is gone goes on to send comments."""
        return self.events

    @property
    def mid_event(self) -> bool:
        return self._scanner.mid_event

    def part(self) -> None:
        """The relay has ended; nothing more comes."""
        self._scanner.part()
        self._gaps.end()
        if self._passage is not None:
            self._passage.part()
        del self._relay

    def push(self, data: bytes) -> None:
        """Before the first data event."""
        preamble = self._shape.preamble
        # By far most streams.
        if preamble is None and not self._held and data[:7] == b"data: {" and 13 not in data:
            end = data.find(b"\n\n")
            if end >= 0 and data.find(b'"error"', 0, end) < 0:
                self._held = data
                self._begin()
                return
        held = self._held = self._held + data if self._held else data
        while (end := first_event_end(held, self._looked_at)) >= 0:
            event = event_data(held[self._looked_at : end].rstrip(b"\r\n"))
            if event is not None and (preamble is None or not preamble(event)):
                self._first_event(event)
                return
            self._looked_at = end
        due = self._looked_at == len(held) and self._relay.now() >= self._relay.heartbeat_at
        if due or len(held) > _MAX_HELD:  # so long a first event is no error
            self._relay.use(self._forward_comments)
            self._commit()

    def end(self) -> None:
        last = self._scanner.finish()
        if self._scanner.terminated:
            self._relay.deliver(last)
        else:
            self._relay.fail(UpstreamError("The replica ended the stream without its terminator."))

    def _first_event(self, event: bytes) -> None:
        error = self._shape.error_in(event)
        if error is not None:
            self._relay.fail(upstream_stream_error(error))
        else:
            self._begin()

    def _begin(self) -> None:
        self._relay.begin()
        self._relay.use(self._first_events)
        self._commit()
        if self._scanner.events > 1:
            self._gaps.together(self._scanner.events - 1)

    def _commit(self) -> None:
        self._relay.start(None)
        held, self._held = self._held, b""
        self._scanner.push(held)

    def _forward_comments(self, data: bytes) -> None:
        """Committed on a comment: the first data event still marks the first token."""
        scanner = self._scanner
        data = scanner.judge(data)
        if scanner.events or scanner.error:
            self._relay.begin()
            self._relay.use(self._first_events)
            if scanner.events > 1:
                self._gaps.together(scanner.events - 1)
        scanner.pass_on(data)

    def _first_events(self, data: bytes) -> None:
        relay, scanner = self._relay, self._scanner
        self._pass(data)
        if scanner.events >= FIRST_EVENTS and relay.on_body == self._first_events:
            relay.first_events_at = relay.now()
            if isinstance(scanner, EventScanner):
                self._passage = relay.passage(scanner)
            relay.use(self._pass if self._passage is None else self._passage.push)

    def _pass(self, data: bytes) -> None:
        scanner = self._scanner
        before = scanner.events
        scanner.push(data)
        if events := scanner.events - before:
            self._gaps.note(events)


def upstream_stream_error(error: dict[str, Any]) -> UpstreamError:
    """An error event at the very start of a stream, with the status that it should have had."""
    code = error.get("code")
    message = str(error.get("message") or "The replica reported an error.")
    status = code if isinstance(code, int) and 400 <= code <= 599 else 502
    if status in (401, 403):
        status = 502  # about the gateway's own credentials, not the client's
    return UpstreamAnswered(message, status=status)
