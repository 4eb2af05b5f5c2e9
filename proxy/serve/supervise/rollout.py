"""The two phases in which all workers take a new configuration, or none of them does.

First every living worker builds it; when all have, all are told to use it. A refusal, a death or
silence in the first phase ends the attempt. In the second nothing can go wrong any more: whoever
dies then is followed by a worker of the new configuration. The core may say no as well, but its
death or silence keeps nobody from going on: a mended configuration may be what it lacks.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from proxy.serve.supervise.names import CORE, name_of

TIMEOUT_S = 30.0
"""For each phase."""


class Step(enum.Enum):
    """What the supervisor has to do next: tell all workers to commit, or to drop; or nothing more,
    as all use the new configuration."""

    COMMIT = "commit"
    DROP = "drop"
    DONE = "done"


class Rollout:
    """One attempt. Instants are monotonic seconds. Ask `step` after each event."""

    def __init__(self, attempt: int, workers: Iterable[int], now: float) -> None:
        self.attempt = attempt
        self.reason = ""
        """Why it is dropped; several lines when a worker said several."""
        self.deadline_at = now + TIMEOUT_S
        self._members = set(workers)
        self._waiting = set(self._members)
        self._committing = False
        self._over = False

    def __repr__(self) -> str:
        phase = "over" if self._over else "committing" if self._committing else "staging"
        return f"<Rollout {self.attempt} {phase}, waiting for {sorted(self._waiting)}>"

    def staged(self, index: int) -> None:
        if not self._committing:
            self._waiting.discard(index)

    def refused(self, index: int, reason: str) -> None:
        if not self._committing and not self.reason:
            self.reason = reason

    def committed(self, index: int) -> None:
        if self._committing:
            self._waiting.discard(index)

    def died(self, index: int) -> None:
        """For a worker that takes no part: nothing happens."""
        needed = index in self._members and index != CORE
        if needed and not self._committing and not self.reason:
            self.reason = f"{name_of(index)} died while it prepared the new configuration"
        self._members.discard(index)
        self._waiting.discard(index)

    def step(self, now: float) -> Step | None:
        """What is to be done; each step is given once, None when there is nothing to do yet."""
        if self._over:
            return None
        late = now >= self.deadline_at
        if self._committing:
            if self._waiting and not late:
                return None
            self._over = True
            return Step.DONE
        if late and not self.reason:
            self._waiting.discard(CORE)
        if late and self._waiting and not self.reason:
            silent = ", ".join(map(name_of, sorted(self._waiting)))
            self.reason = f"{silent} did not answer within {TIMEOUT_S:g} s"
        if self.reason:
            self._over = True
            return Step.DROP
        if self._waiting:
            return None
        self._committing = True
        self._waiting = set(self._members)
        self.deadline_at = now + TIMEOUT_S
        return Step.COMMIT
