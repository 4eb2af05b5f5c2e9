"""Whether the KV events of one data-parallel rank are complete, and what to do if not. Pure.

Batches are numbered from 0 by their publisher. What is missing is asked for (`Step.replay_from`)
while later batches are held; what cannot be had means that nothing known before holds any more
(`Step.clear`). A number that goes back with a later time is another publisher: the engine was
restarted. One that goes back with no later time was heard twice, by replay and by subscription.

After a loss of connection the last batch is asked for again, too: only if it comes back with the
same time is it the same publisher.
"""

from __future__ import annotations

from typing import NamedTuple

from backend.kv.events import Batch
from core.kv_events import Trust

MOST_HELD = 1_000
"""Batches, until a replay is over; more of them are asked for afterwards."""
LOST_S = 5.0
"""Without a connection for so long, its cache is judged by what was sent there."""
STALE_S = 10.0
"""As long may an event be due and not come."""


class Step(NamedTuple):
    """What to do, in this order: forget everything, apply `batches`, ask for a replay."""

    clear: bool = False
    batches: tuple[Batch, ...] = ()
    replay_from: int | None = None


NOTHING = Step()


class EventStream:
    """`replayable`: there is somebody to ask. `trust` and `why` it is so, for people."""

    def __init__(self, replayable: bool) -> None:
        self.replayable = replayable
        self.trust = Trust.APPROX
        self.why = "not connected yet"
        self.gaps = 0
        self._next: int | None = None
        self._ts = 0.0
        self._replaying = False
        self._verify = False
        self._other = False
        self._held: dict[int, Batch] = {}
        self._connected = False
        self._lost_at: float | None = None
        self._due_at: float | None = None

    def __repr__(self) -> str:
        return f"<EventStream {self.trust.value}, next {self._next}>"

    # --- the connection

    def connected(self) -> Step:
        """Batches that are published from now on will be heard."""
        self._connected = True
        self._lost_at = None
        if self.replayable:
            return self._ask("connected")
        known = self._next is not None
        self._next = None
        self._become(Trust.EXACT, "connected, there is no replay")
        return Step(clear=known)

    def disconnected(self, now: float) -> None:
        self._connected = False
        self._replaying = False
        self._held.clear()
        if self._lost_at is None:
            self._lost_at = now
        if self.trust is Trust.EXACT:
            self._become(Trust.RECOVERING, "the connection was lost")

    def tick(self, now: float) -> None:
        """To be called once in a while."""
        if self._lost_at is not None and now - self._lost_at > LOST_S:
            self._become(Trust.APPROX, "no connection")
        elif self._due_at is not None and now - self._due_at > STALE_S:
            self._become(Trust.APPROX, "events that are due do not come")

    def due(self, now: float) -> None:
        """A prompt that was new to the replica has been prefilled: an event must come."""
        if self._due_at is None and self._connected:
            self._due_at = now

    # --- batches

    def live(self, seq: int, batch: Batch) -> Step:
        """A batch was published."""
        self._due_at = None
        if self._replaying:
            if len(self._held) < MOST_HELD:
                self._held[seq] = batch
            return NOTHING
        if self.trust is Trust.APPROX:
            if self.replayable:
                self._held[seq] = batch
                return self._ask("events come again")
            self._become(Trust.EXACT, "events come again")
        return self._take(seq, batch, self.replayable)

    def replayed(self, seq: int, batch: Batch) -> Step:
        """A batch came as an answer."""
        if not self._replaying or self._other:
            return NOTHING
        clear = False
        if self._verify and self._next is not None:
            self._verify = False
            if seq == self._next - 1 and batch.ts == self._ts:
                return NOTHING
            clear = True
            if seq < self._next:
                self._other = True  # another publisher: ask again, from its start
                self._next = None
                return Step(clear=True)
        elif self._next is not None:
            if seq < self._next:
                return NOTHING
            clear = seq > self._next
        self._applied(seq, batch)
        return Step(clear, (batch,))

    def replay_ended(self, answered: bool = True) -> Step:
        """No more comes. `answered`: because all was told, not because nobody speaks."""
        if not self._replaying:
            return NOTHING
        clear = False
        if self._verify:
            clear = self._next is not None
            self._next = None
            self._other = answered and clear
        if self._other:
            again = self._ask("another publisher")
            return again._replace(clear=clear)
        self._replaying = False
        if self._next is None and answered:
            self._next = 0  # it has published nothing yet
        self._become(Trust.EXACT, "replayed" if answered else "the replay was not answered")
        batches: list[Batch] = []
        held, self._held = sorted(self._held.items()), {}
        for seq, batch in held:
            step = self._take(seq, batch, False)
            if step.clear:
                clear = True
                batches.clear()
            batches += step.batches
        return Step(clear, tuple(batches))

    def unreadable(self, seq: int) -> Step:
        """A batch was published that nobody can read: whatever it removed is not known."""
        return self.live(seq, Batch(self._ts, [], None, 0, 1))._replace(clear=True)

    # --- within

    def _take(self, seq: int, batch: Batch, may_ask: bool) -> Step:
        expected = self._next
        if expected is None or seq == expected:
            self._applied(seq, batch)
            return Step(False, (batch,))
        if seq < expected:
            if batch.ts <= self._ts:
                return NOTHING
            self._next = None
            if seq and may_ask:
                self._held[seq] = batch
                return self._ask("the engine was restarted")._replace(clear=True)
            self._applied(seq, batch)
            return Step(True, (batch,))
        self.gaps += 1
        if may_ask:
            self._held[seq] = batch
            return self._ask(f"batches {expected} to {seq - 1} are missing")
        self._applied(seq, batch)
        return Step(True, (batch,))

    def _applied(self, seq: int, batch: Batch) -> None:
        self._next = seq + 1
        self._ts = batch.ts

    def _ask(self, why: str) -> Step:
        self._become(Trust.RECOVERING, why)
        self._replaying = True
        self._other = False
        self._verify = bool(self._next)
        return Step(replay_from=max((self._next or 0) - 1, 0))

    def _become(self, trust: Trust, why: str) -> None:
        if trust is not self.trust:
            self.trust = trust
            self.why = why
