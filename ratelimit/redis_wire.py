"""One connection to Redis: the commands of a loop tick in one write, replies in order.

A client of its own because the call is on the path of every request: redis-py costs three times as
much CPU (measured side by side: 81 us a call alone against 27, 31 against 13 when 32 share a
pipeline). It speaks RESP2 through hiredis, and nothing is ever retried on it, except a script that
the server has forgotten.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

import hiredis

from ratelimit.circuit import Circuit
from ratelimit.redis_reply import kind_of
from ratelimit.store import StoreUnavailable

LINGER_S: Final = 0.01
"""What nobody waits for gathers so long at most, or until a reserve to travel with."""
SOON_S: Final = 0.002
"""What somebody may wait for soon: a slot that is free again."""
STALL_S: Final = 0.002
GRACE_S: Final = 0.001
MAX_REPLY: Final = 1_048_576
"""Bytes; our replies have a hundred. A server that sends so much without an end is none of ours."""


class Call:
    """A command and who waits for its reply: a future, or nobody. `kept`: it must not be lost (a
    settle). `slot` is the place of its keys in a cluster."""

    __slots__ = ("command", "due_at", "expired", "future", "kept", "sent_at", "slot", "tries")

    def __init__(
        self,
        command: bytes,
        slot: int = 0,
        *,
        future: asyncio.Future[Any] | None = None,
        kept: bool = False,
    ) -> None:
        self.command = command
        self.slot = slot
        self.future = future
        self.kept = kept
        self.due_at = 0.0
        self.sent_at = 0.0  # first of all, as `unsettled` finds out
        self.expired = False
        self.tries = 0

    def __repr__(self) -> str:
        return f"<Call {len(self.command)} bytes due at {self.due_at:.3f}>"


def _no_other_server(call: Call, error: str) -> bool:
    return False


class Wire(asyncio.Protocol):
    """The connection. `lost` ends with the word for why; then every waiting call has failed.

    `script`: the beginnings of a command by hash and by full script text. `unsettled` receives
    kept calls that got no reply; `observe` the seconds of answered calls and how many took so long.
    `redirect` may take over a call that the server has no keys for (MOVED, ASK).
    """

    def __init__(
        self,
        circuit: Circuit,
        deadline_s: float,
        script: tuple[bytes, bytes],
        unsettled: Callable[[Call], None],
        observe: Callable[[float, int], None],
        *,
        redirect: Callable[[Call, str], bool] = _no_other_server,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._circuit = circuit
        self._deadline_s = deadline_s
        self._by_hash, self._by_text = script
        self._unsettled = unsettled
        self._observe = observe
        self._redirect = redirect
        self._transport: asyncio.Transport | None = None
        self._reader = hiredis.Reader()
        self._outgoing: list[Call] = []
        self._pending: deque[Call] = deque()
        self._unread = 0  # bytes since the last complete reply
        self._open = True
        self._flush_soon = False
        self._flush_later: asyncio.TimerHandle | None = None
        self._flush_within_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._stalled = False
        self.lost: asyncio.Future[str] = self._loop.create_future()

    def __repr__(self) -> str:
        return f"<Wire {len(self._pending)} pending, lost={self.lost.done()}>"

    def call(self, command: bytes, slot: int = 0) -> asyncio.Future[Any]:
        """Send with this tick's other commands. The future may fail with StoreUnavailable."""
        future: asyncio.Future[Any] = self._loop.create_future()
        # As `submit`, written out: there is one for each request.
        if self._open:
            self._outgoing.append(Call(command, slot, future=future))
            if not self._flush_soon:
                self._flush_soon = True
                self._loop.call_soon(self._flush)
        else:
            future.set_exception(StoreUnavailable("lost"))
        return future

    def submit(self, call: Call) -> None:
        """As `call`, for a call that is made already."""
        if not self._open:
            self._fail(call, "lost")
            return
        self._outgoing.append(call)
        if not self._flush_soon:
            self._flush_soon = True
            self._loop.call_soon(self._flush)

    def submit_later(self, call: Call, within_s: float = LINGER_S) -> None:
        """Send with the next write, or in `within_s`."""
        if not self._open:
            self._fail(call, "lost")
            return
        self._outgoing.append(call)
        if self._flush_soon:
            return
        if self._flush_later is not None:
            if within_s == LINGER_S or self._flush_within_s <= within_s:
                return
            self._flush_later.cancel()
        self._flush_within_s = within_s
        self._flush_later = self._loop.call_later(within_s, self._flush_lingering)

    def drop(self, kind: str) -> None:
        """Give the connection up at once; everything that waits fails with `kind`."""
        if not self._open:
            return
        self._open = False
        self.lost.set_result(kind)
        if self._transport is not None:
            self._transport.abort()
        for timer in (self._timer, self._flush_later):
            if timer is not None:
                timer.cancel()
        waiting = [*self._pending, *self._outgoing]
        self._pending.clear()
        self._outgoing.clear()
        for call in waiting:
            self._fail(call, kind)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not every loop's transports are instances of asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.drop("lost")

    def eof_received(self) -> None:
        self.drop("lost")

    def data_received(self, data: bytes) -> None:
        reader, pending, now = self._reader, self._pending, time.monotonic()
        due_at, answered = 0.0, 0
        self._unread += len(data)
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                self._unread = 0
                if not pending:
                    # Also what a full server says on a fresh connection before it hangs up.
                    self.drop(_kind_of_reply(reply, "protocol"))
                    break
                call = pending.popleft()
                if isinstance(reply, hiredis.ReplyError):
                    self._refused(call, str(reply))
                    continue
                if not call.expired:
                    # The calls of one write are due together: they are observed together.
                    if answered and call.due_at != due_at:
                        self._observe(now - due_at + self._deadline_s, answered)
                        answered = 0
                    due_at = call.due_at
                    answered += 1
                    self._circuit.failures = 0
                future = call.future
                if future is not None and not future.done():
                    future.set_result(reply)
            if self._unread > MAX_REPLY:
                self.drop("protocol")
        except (hiredis.ProtocolError, MemoryError):
            self.drop("protocol")
        if answered:
            self._observe(now - due_at + self._deadline_s, answered)

    def _refused(self, call: Call, error: str) -> None:
        kind = kind_of(error)
        if kind == "noscript":
            # The text brings the script back and cannot be refused so; the deadline stays.
            call.command = call.command.replace(self._by_hash, self._by_text, 1)
            self.submit(call)
            return
        if kind in ("moved", "ask") and self._redirect(call, error):
            return
        self._fail(call, kind)
        # A key of the wrong type is one tenant's trouble, not the server's, and so is a slot that
        # moves. A server that may not write any more is no longer the one to talk to.
        if kind not in ("wrong_type", "ask") and (self._circuit.failed() or kind == "readonly"):
            self.drop(kind)

    def _fail(self, call: Call, kind: str) -> None:
        if call.future is None:
            if call.kept and kind != "wrong_type":
                self._unsettled(call)
        elif not call.future.done():
            call.future.set_exception(StoreUnavailable(kind))

    def _flush_lingering(self) -> None:
        """Settles found no company. The timer is not cancelled when they do, but fires for what
        came since then: setting one anew for each write costs more than it waits too little."""
        self._flush_later = None
        if not self._flush_soon:
            self._flush()

    def _flush(self) -> None:
        self._flush_soon = False
        calls = self._outgoing
        if not calls or self._transport is None:
            return
        self._outgoing = []
        first_at = due_at = time.monotonic() + self._deadline_s
        for call in calls:
            if call.due_at == 0.0:
                call.due_at = due_at
            elif call.due_at < first_at:
                first_at = call.due_at
        self._pending.extend(calls)
        if self._timer is None:
            self._arm(first_at)
        self._transport.write(b"".join([call.command for call in calls]))

    def _arm(self, at: float) -> None:
        """One timer for all calls: it is set anew when it fires, not for each call."""
        self._timer_at = at
        # time.monotonic throughout: the clock of some loops has whole milliseconds only.
        self._timer = self._loop.call_later(max(GRACE_S, at - time.monotonic()), self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = time.monotonic()
        if now - self._timer_at > STALL_S and not self._stalled:
            # This loop was held up, not Redis: replies may lie in the socket. Read them first; but
            # once, as the loop reads between two timers, and a busy one is held up every time.
            self._stalled = True
            self._arm(now + GRACE_S)
            return
        self._stalled = False
        late = [call for call in self._pending if call.due_at <= now and not call.expired]
        for call in late:
            call.expired = True
            if call.future is not None and not call.future.done():
                call.future.set_exception(StoreUnavailable("timeout"))
        if late and self._circuit.failed():
            self.drop("timeout")
            return
        next_at = min((call.due_at for call in self._pending if not call.expired), default=0.0)
        if next_at:
            self._arm(next_at)


def _kind_of_reply(reply: Any, otherwise: str) -> str:
    return kind_of(str(reply)) if isinstance(reply, hiredis.ReplyError) else otherwise
