"""Carries one replica's answer to one client: bytes in, bytes out, as they come.

Per chunk this is a chain of plain calls from the upstream connection's `data_received` to the
client transport's `write`: no task, no future, no queue. The relay owns the life of one attempt
(deadlines, flow control, its single end); what happens to the bytes is decided by the body that
fits the response: `StreamedBody` for SSE, `WholeBody` for everything else.

An attempt ends once: complete, or failed. While nothing was sent to the client a failure can be
tried elsewhere; afterwards the client must see that its answer was cut.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from core.errors import (
    GatewayError,
    Unavailable,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeout,
)
from core.exchange import Exchange, Header
from proxy.answers import error_event
from proxy.flow import NEVER, RelayTimeouts
from proxy.headers import read_response
from proxy.heartbeats import COMMENT, HEAD, Heartbeats
from proxy.passage import Passage
from proxy.scanner import EventScanner
from proxy.streamed_body import StreamedBody
from proxy.surfaces.openai import OPENAI
from proxy.surfaces.shape import Shape
from proxy.token_gaps import StreamGaps, TokenGaps
from proxy.whole_body import NoStream, WholeBody

_JSON = b"application/json"
_PLAIN = (b"", b"identity")  # the only codings that a replica is asked for
_FRAMING_S = 1.0  # how long the replica may take to end its framing after the terminator


class Upstream(Protocol):
    """What the relay needs of an upstream connection."""

    def abort(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def divert(self, take: Callable[[bytes], None]) -> Callable[[bytes], None] | None:
        """Show all further reads of the response to `take`, framing and all; returns where it
        sends those that it does not pass on. None: there is no such framing."""


class Relay:
    """One attempt to answer `exchange` from one replica: the handler of the upstream response
    and the flow source of the exchange. `wait` returns or raises at its end."""

    __slots__ = (
        "_begun",
        "_body",
        "_delivered",
        "_done",
        "_due_at",
        "_end_at",
        "_exchange",
        "_gaps",
        "_heartbeats",
        "_on_first_event",
        "_own_headers",
        "_passed",
        "_raw",
        "_relayed",
        "_shape",
        "_streamed",
        "_timeouts",
        "_upstream",
        "committed",
        "deadline_at",
        "first_events_at",
        "heartbeat_at",
        "last_words",
        "now",
        "on_body",
        "on_commit",
        "promised",
        "seeking",
        "status",
    )

    def __init__(
        self,
        exchange: Exchange,
        *,
        stream: bool,
        strip_usage: bool,
        own_headers: Sequence[Header],
        on_first_event: Callable[[float], None],
        timeouts: RelayTimeouts,
        shape: Shape = OPENAI,
        seeking: bool = False,
        raw: bool = False,
        predicted_s: float = 0.0,
        heartbeats: Heartbeats | None = None,
        gaps: StreamGaps | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.now = time.monotonic
        self._exchange = exchange
        self._own_headers = own_headers
        self._shape = shape
        self.seeking = seeking
        self._raw = raw
        self._on_first_event = on_first_event
        self._timeouts = timeouts
        self._done: asyncio.Future[None] = loop.create_future()
        self._upstream: Upstream | None = None
        self._gaps = gaps = gaps or StreamGaps(TokenGaps(), self.now)
        self._streamed = StreamedBody(self, strip_usage=strip_usage, shape=shape, gaps=gaps)
        self._body: StreamedBody | WholeBody | NoStream = self._streamed
        # Per chunk the upstream connection calls straight into the body; `use` changes where.
        self.on_body: Callable[[bytes], None] = self._body.push
        self._passed: Sequence[Header] = ()  # of the response's headers
        self._relayed = 0  # bytes sent to the client at the last look
        self._begun = self._delivered = False
        now = self.now()
        self._end_at = NEVER if timeouts.total_s is None else now + timeouts.total_s
        patience_s = timeouts.first_token_factor * predicted_s
        first_s = max(timeouts.first_token_s, patience_s) if stream else timeouts.response_s
        self._due_at = self.deadline_at = min(now + first_s, self._end_at)
        self._heartbeats = beats = heartbeats if stream and not raw else None
        if beats is not None:
            self.deadline_at = min(self._due_at, now + beats.interval_s)
        self.on_commit: Callable[[Relay], None] | None = None
        self.promised = False  # the client was told of a stream that the replica has not begun
        self.heartbeat_at = now + timeouts.heartbeat_s
        self.committed = False
        self.first_events_at: float | None = None
        self.last_words: Callable[[], bytes] | None = None
        self.status = 0

    def __repr__(self) -> str:
        return f"<Relay status={self.status} committed={self.committed} {self._body!r}>"

    async def wait(self, upstream: Upstream) -> None:
        """Until the answer is complete. Raises the GatewayError that ended it otherwise. Leaves
        no upstream work behind on any way out."""
        self._upstream = upstream
        self._exchange.source = self
        try:
            await self._done
        except asyncio.CancelledError:
            upstream.abort()
            if self.committed and not self._delivered and not self._exchange.gone:
                self._cut(Unavailable("The gateway is shutting down."))
            raise
        finally:
            self.deadline_at = NEVER
            if self._exchange.source is self:
                self._exchange.source = None
            self._upstream = None
            self._part()

    def _part(self) -> None:
        """Relay and bodies refer to each other. Parted, all of an exchange is freed at once and
        its memory is used again while the caches still hold it; the collector would come late."""
        self.on_body = _ignore
        self._exchange.bytes_sent += self._streamed.passed_bytes
        self._streamed.part()
        if self._body is not self._streamed:
            self._body.part()

    @property
    def usage(self) -> dict[str, Any] | None:
        """The replica's `usage` object, if it sent one, in the words of chat completions."""
        usage, words = self._body.usage, self._shape.usage
        return usage if words is None or self._body is self._streamed else words(usage)

    @property
    def content_events(self) -> int:
        """Data events relayed so far that may hold content; 0 for an answer in one piece."""
        return self._streamed.events

    @property
    def upstream_failure(self) -> str | None:
        """The words of an error event that the replica sent inside a committed stream."""
        error = self._streamed.error
        return None if error is None else str(error.get("message", "error event"))

    @property
    def _sent(self) -> int:
        return self._exchange.bytes_sent + self._streamed.passed_bytes

    # --- flow source

    def pause_reading(self) -> None:
        if self._upstream is not None:
            self._upstream.pause_reading()

    def resume_reading(self) -> None:
        if self._upstream is not None:
            self._upstream.resume_reading()

    # --- response handler

    @property
    def progress(self) -> int:
        return self.status + self._body.progress

    def on_head(self, status: int, headers: list[Header]) -> None:
        if not self.promised:
            self.status = status
        coding, content_type, self._passed = read_response(tuple(headers))
        if coding not in _PLAIN:
            self.fail(UpstreamProtocolError("The replica's answer is compressed, unasked."))
            return
        events = status == 200 and content_type.startswith(b"text/event-stream")
        if self.promised and not events:
            self._body = NoStream(self, status)
            self.on_body = self._body.push
        elif self._raw or not events:
            # What is no JSON (sound, a stream of unknown form) is not to wait for its end.
            flows = self._raw and status == 200 and not content_type.startswith(_JSON)
            self._body = WholeBody(self, flows=flows, any_answer=self._raw)
            self.on_body = self._body.push

    def on_end(self) -> None:
        if self._done.done():
            return
        if not self._delivered:
            self._body.end()
        if self._delivered:
            self._done.set_result(None)

    def on_failed(self, error: UpstreamError) -> None:
        self.fail(error)

    def on_deadline(self, now: float) -> None:
        """The sweep came by after `deadline_at`."""
        if now >= self._end_at or self._delivered:
            self.fail(UpstreamTimeout("The exchange took longer than allowed.", phase="total"))
        elif self._begun and self._relayed != self._sent:
            self._relayed = self._sent
            self._wait(now)
        elif now < self._due_at and self._heartbeats is not None:
            self._beat(self._heartbeats, now)
        elif self._begun:
            self.fail(UpstreamTimeout("The replica sent nothing for too long.", phase="idle"))
        else:
            self.fail(
                UpstreamTimeout("The replica did not begin to answer in time.", phase="first_token")
            )

    def _wait(self, now: float) -> None:
        """Bytes have just come, and more must."""
        self._due_at = self.deadline_at = min(now + self._timeouts.idle_s, self._end_at)
        if self._heartbeats is not None:  # two looks without a byte in between are an interval
            self.deadline_at = min(self._due_at, now + self._heartbeats.interval_s / 2)

    def _beat(self, beats: Heartbeats, now: float) -> None:
        self.deadline_at = min(self._due_at, now + beats.interval_s)
        if not self.committed and beats.before_head:
            self._passed, self.status = read_response(HEAD).passed, 200
            self.start(None)
            self.promised = True
        silent = self.committed and self._relayed == self._sent
        if silent and self._in_events and not self._streamed.mid_event:
            self._exchange.write(COMMENT)
        self._relayed = self._sent

    @property
    def _in_events(self) -> bool:
        return self.promised or self._body is self._streamed

    # --- called by the body

    def begin(self) -> None:
        """The first data event, or the whole of an answer in one piece, is there."""
        if not self._begun:
            self._begun = True
            now = self.now()
            self._wait(now)
            self._gaps.begin(now)
            self._on_first_event(now)

    def start(self, length: int | None) -> None:
        """Send the head: from here on there is no other replica."""
        if self.promised:
            return
        if self.on_commit is not None:
            self.on_commit(self)
            self._exchange.source = self
        self.committed = True
        self._exchange.start(self.status, (*self._passed, *self._own_headers), length)

    def use(self, push: Callable[[bytes], None]) -> None:
        """Further bytes of the body go to `push`."""
        self.on_body = push

    def passage(self, scanner: EventScanner) -> Passage | None:
        """The short way for the rest of the stream, where both connections have it."""
        send, upstream = self._exchange.framed, self._upstream
        if send is None or upstream is None:
            return None
        passage = Passage(scanner, send, self._gaps)
        read = upstream.divert(passage.take)
        if read is None:
            return None
        passage.read = read
        return passage

    @property
    def write(self) -> Callable[[bytes], None]:
        return self._exchange.write

    def deliver(self, data: bytes) -> None:
        """The last bytes of a complete answer: the exchange is over for the client. The relay
        ends when the replica's framing does, so that its connection can be used again."""
        self._exchange.finish(data if self.last_words is None else data + self.last_words())
        self._delivered = True
        self.on_body = _ignore
        self.deadline_at = self.now() + _FRAMING_S

    def fail(self, error: GatewayError) -> None:
        if self._done.done():
            return
        self.deadline_at = NEVER
        self.on_body = _ignore
        if self._upstream is not None:
            self._upstream.abort()
        if self._delivered:  # what comes after the terminator is of no use to anybody
            self._done.set_result(None)
            return
        if self.committed:
            self._cut(error)
        self._done.set_exception(error)

    def _cut(self, error: GatewayError) -> None:
        if self._in_events:
            mid_event = self._streamed.mid_event
            event = error_event(error, self._exchange.id, mid_event=mid_event, shape=self._shape)
            self._exchange.write(event)
        self._exchange.abort()


def _ignore(data: bytes) -> None:
    pass
