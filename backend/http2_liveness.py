"""Whether an HTTP/2 connection is still alive: silence is answered with a PING. Pure."""

from __future__ import annotations

from enum import Enum


class Verdict(Enum):
    """`ASK`: send a PING now. `DOUBTED`: it is not answered yet. `DEAD`: it never will be."""

    WELL = "well"
    ASK = "ask"
    DOUBTED = "doubted"
    DEAD = "dead"


class Liveness:
    """What is known of one connection. Instants are monotonic seconds."""

    __slots__ = ("_asked_at", "_doubts", "_heard", "_heard_at")

    def __init__(self) -> None:
        self._heard = -1
        self._heard_at = 0.0
        self._asked_at: float | None = None
        self._doubts = 0

    def __repr__(self) -> str:
        state = "heard" if self._asked_at is None else "asked"
        return f"<Liveness {state}, {self._heard} reads>"

    def check(self, heard: int, now: float, silent_s: float) -> Verdict:
        """To be called once in a while. `heard` counts the reads of the connection; after
        `silent_s` without one a PING is due, and as long again is given for the answer."""
        if heard != self._heard:
            self._heard = heard
            self._heard_at = now
            self._asked_at = None
            return Verdict.WELL
        if self._asked_at is not None:
            # After a pause of our own the answer may lie there unread: never at the first look.
            self._doubts += 1
            dead = self._doubts > 1 and now - self._asked_at >= silent_s
            return Verdict.DEAD if dead else Verdict.DOUBTED
        if now - self._heard_at >= silent_s:
            self._asked_at = now
            self._doubts = 0
            return Verdict.ASK
        return Verdict.WELL
