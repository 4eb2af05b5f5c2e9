"""One answer being sent, token by token or whole. Performs (timers, writes).

Per token this is one call from the loop and one write: the replica is also what load tests measure
against, so it has to be cheap.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from loadtest.replica import dialect
from loadtest.replica.apis import Wording
from loadtest.replica.behaviour import Behaviour
from loadtest.replica.connection import Connection
from loadtest.replica.engine import Job
from loadtest.replica.record import Record
from loadtest.replica.tokens import Speech


class Owner(Protocol):
    """What an answer needs of the replica."""

    def ended(self, answer: Answer, outcome: str, reason: str) -> None: ...
    def die(self) -> None: ...
    def head(self, status: int, content_type: bytes = b"", length: int | None = None) -> bytes: ...


class Answer:
    """Sends the output of one job; `ended` of the owner is called exactly once."""

    def __init__(
        self,
        owner: Owner,
        connection: Connection,
        speech: Speech,
        job: Job,
        wording: Wording,
        *,
        behaviour: Behaviour,
        record: Record,
        finish_reason: str,
        token_s: float,
    ) -> None:
        self.owner = owner
        self.connection = connection
        self.job = job
        self.wording = wording
        self.behaviour = behaviour
        self.record = record
        self.loop = asyncio.get_running_loop()
        self.stop_at = -1  # the token count at which `at_stop` takes over
        self.at_stop: Callable[[], None] = self.end
        self.sent = 0
        self._speech = speech
        self._finish_reason = finish_reason
        self._token_s = token_s
        self._first_at = 0.0
        self._before, self._after = wording.halves()
        self._timer: asyncio.Handle | None = None
        self._comments: asyncio.TimerHandle | None = None
        self._ended = False
        self._written_before = connection.written
        connection.on_lost = self._client_gone

    def __repr__(self) -> str:
        return f"<Answer {self.wording.response_id} {self.sent}/{len(self.job.output_ids)}>"

    def open_head(self) -> None:
        """The head of a stream, sent before the job is scheduled; comments from now on."""
        self.record.status = 200
        self.connection.write(self.owner.head(200, dialect.EVENT_STREAM))
        if "keep_alive" in self.behaviour:
            self._arm_comments(self.connection.written)

    def start(self) -> None:
        """The job runs: wait for its first token."""
        self.record.cached_tokens = self.job.cached_tokens
        extra_s = self.behaviour.get("prefill_ms", 0.0) / 1e3
        first_at = self._first_at = self.job.first_token_at + extra_s
        if self.record.stream:
            self._at(first_at, self.tick)
        else:
            self._at(first_at + self._token_s * (len(self.job.output_ids) - 1), self._whole)

    def tick(self) -> None:
        """Send the next token (with the role before the first) and schedule the one after it."""
        sent, ids, connection = self.sent, self.job.output_ids, self.connection
        if sent == self.stop_at:
            self.stop_at = -1
            self.at_stop()
            return
        if sent == 0:
            for event in self.wording.opening():
                connection.write(dialect.chunk(event))
        token = ids[sent]
        sent += 1
        self.sent = self.job.sent_tokens = sent
        text = self._speech.text(token)
        last = sent == len(ids)
        if self.wording.plain and not last:
            event = self._before + text.encode() + self._after
        else:
            reason = self._finish_reason if last else None
            event = self.wording.token_event(text, token, sent, reason, time.monotonic_ns())
        connection.write(dialect.chunk(event))
        if last:
            self._finish()
        elif self._token_s:
            self._at(self._first_at + sent * self._token_s, self.tick)
        else:
            self._timer = self.loop.call_soon(self.tick)

    def later(self, seconds: float) -> None:
        """Go on after `seconds`."""
        self._timer = self.loop.call_later(
            seconds, self.tick if self.record.stream else self._whole
        )

    def end(self, outcome: str = "faulted", reason: str = "error") -> None:
        """Nothing more comes from this answer. The connection is left as it is."""
        if self._ended:
            return
        self._ended = True
        for handle in (self._timer, self._comments):
            if handle is not None:
                handle.cancel()
        self._timer = self._comments = None
        self.connection.on_writable = None
        self.record.sent_tokens = self.sent
        self.count_bytes()
        self.owner.ended(self, outcome, reason)

    def count_bytes(self) -> None:
        """Bring the record's byte count up to date."""
        self.record.sent_bytes = self.connection.written - self._written_before

    def end_body(self, *events: bytes) -> None:
        """The last events, then the last chunk: a clean end of the stream."""
        for event in events:
            self.connection.write(dialect.chunk(event))
        self.connection.write(dialect.LAST_CHUNK)

    def _finish(self) -> None:
        events = self.wording.closing(
            self._text,
            self.sent,
            self.job.cached_tokens,
            self._finish_reason,
            usage="no_usage" not in self.behaviour,
            end="no_done" not in self.behaviour,
        )
        self.end_body(*events)
        self.end("done", self._finish_reason)
        self.connection.finished()

    def _whole(self) -> None:
        """The answer of a request without `stream`; a stop leaves it half sent."""
        ids, job = self.job.output_ids, self.job
        body = self.wording.document(self._text(), ids, job.cached_tokens, self._finish_reason)
        head = self.owner.head(200, b"application/json", len(body))
        self.record.status = 200
        if self.stop_at >= 0:
            if self.stop_at > 0:
                self.connection.write(head + body[: len(body) // 2])
            self.stop_at = -1
            self.at_stop()
            return
        self.sent = job.sent_tokens = len(ids)
        self.connection.write(head + body)
        self.end("done", self._finish_reason)
        self.connection.finished()

    def _text(self) -> str:
        return "".join(map(self._speech.text, self.job.output_ids))

    def _client_gone(self) -> None:
        if not self._ended:
            self.record.aborted_at = time.monotonic()
            self.end("aborted", "abort")

    def _at(self, instant: float, action: Callable[[], None]) -> None:
        delay = instant - time.monotonic()
        if delay > 0:
            self._timer = self.loop.call_later(delay, action)
        else:
            self._timer = self.loop.call_soon(action)

    def _arm_comments(self, written: int) -> None:
        interval = self.behaviour["keep_alive"]
        self._comments = self.loop.call_later(interval, self._comment, written)

    def _comment(self, written: int) -> None:
        if self.connection.written == written:
            self.connection.write(dialect.chunk(dialect.COMMENT))
        self._arm_comments(self.connection.written)
