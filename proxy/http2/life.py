"""The times of one HTTP/2 connection: what is due when. Pure: `now` is an argument.

A connection must get going, is asked whether it is still there when it is silent, and retires:
when it is idle, when it is old, when the gateway wants so. To retire takes two steps, because a
request may be under way while we say that we take no more (RFC 9113 section 6.8). A fragile client,
which gives up its open streams at the first of them, is told when it has none.
"""

from __future__ import annotations

from enum import Enum

from proxy.config import ListenTimeouts
from proxy.flow import NEVER

PING_AFTER_S = 30.0
"""Silence while streams are open, after which the client is asked."""
PING_WAIT_S = 15.0
NOTICE_S = 2.0
"""How long a client's answer to the notice that we retire is waited for."""
LONGEST_S = 3600.0
"""An older connection retires, so that clients spread anew over workers and hosts."""
MOST_STREAMS = 10_000
"""Likewise one that had so many."""


class Step(Enum):
    """What is to be done. `NOTICE`: the first GOAWAY; `LAST`: the second, and then the end once
    all streams have ended."""

    GIVE_UP = "give_up"
    PING = "ping"
    DEAD = "dead"
    NOTICE = "notice"
    LAST = "last"


class Life:
    """All instants are monotonic seconds, `NEVER` for what is not due."""

    __slots__ = (
        "_heard_at",
        "_idle_at",
        "_old_at",
        "_pinged_at",
        "_settle_at",
        "_streams",
        "_timeouts",
        "busy",
        "finished",
        "fragile",
        "noticed_at",
        "settings_came",
        "settled",
        "wanted",
    )

    def __init__(self, timeouts: ListenTimeouts, now: float, spread: float) -> None:
        """`spread`, from 0 to 1, makes connections of one moment retire at different times."""
        self._timeouts = timeouts
        self._heard_at = now
        self._pinged_at = NEVER
        self._settle_at = now + timeouts.head_s
        self._idle_at = NEVER
        self._old_at = now + LONGEST_S * (1.0 - 0.2 * spread)
        self._streams = 0
        self.busy = False
        self.settings_came = False
        self.settled = False
        self.fragile = False
        self.wanted = False  # it is to retire
        self.noticed_at = NEVER
        self.finished = False

    def __repr__(self) -> str:
        state = "finished" if self.finished else "retiring" if self.retiring else "open"
        return f"<Life {state} busy={self.busy} {self._streams} streams>"

    @property
    def retiring(self) -> bool:
        return self.noticed_at != NEVER

    def heard(self, now: float) -> None:
        self._heard_at = now
        self._pinged_at = NEVER

    def settings(self, now: float) -> None:
        """The client's settings came: it is one that speaks HTTP/2."""
        if not self.settings_came:
            self.settings_came = True
            self._idle_at = now + self._timeouts.keep_alive_s

    def settings_answered(self) -> None:
        self.settled = True
        self._settle_at = NEVER

    @property
    def may_retire(self) -> bool:
        """Whether the first step may be taken now."""
        return self.wanted and not self.retiring and not (self.fragile and self.busy)

    def began(self, now: float) -> None:
        """A stream began."""
        self.busy = True
        self._idle_at = NEVER
        self._heard_at = now
        self._streams += 1
        self.wanted = self.wanted or self._streams >= MOST_STREAMS

    def idle(self, now: float) -> float:
        """No stream is open any more; until when it may stay so."""
        self.busy = False
        self._idle_at = now + self._timeouts.keep_alive_s
        return self._idle_at

    def pinged(self, now: float) -> None:
        self._pinged_at = now

    def noticed(self, now: float) -> float:
        """The notice was given; until when its answer is waited for."""
        self.noticed_at = now
        return now + NOTICE_S

    def next_at(self) -> float:
        """When `due` is to be asked again."""
        if self.finished:
            return self._silence_at()
        retire_at = (
            self.noticed_at + NOTICE_S if self.retiring else min(self._idle_at, self._old_at)
        )
        return min(self._settle_at, self._silence_at(), retire_at)

    def due(self, now: float) -> Step | None:
        if now >= self._settle_at:
            return Step.GIVE_UP
        if now >= self._silence_at():
            return Step.PING if self._pinged_at == NEVER else Step.DEAD
        if self.finished:
            return None
        if now < self._retire_at():
            return None
        return Step.LAST if self.retiring else Step.NOTICE

    def _retire_at(self) -> float:
        if self.retiring:
            return self.noticed_at + NOTICE_S
        return NEVER if self.wanted else min(self._idle_at, self._old_at)

    def _silence_at(self) -> float:
        if not self.busy:
            return NEVER
        if self._pinged_at != NEVER:
            return self._pinged_at + PING_WAIT_S
        return self._heard_at + PING_AFTER_S
