"""When an issuer's key set may be fetched. Pure: every instant is an argument.

One allowance covers every fetch, whatever it is for and however it ends: `BURST` at once, then
one per cool-down. So a host never fetches more than `BURST + elapsed / cool_down` times, and a
genuine new key, in the middle of a flood of unknown ones, waits for one cool-down at most.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

BURST = 3
MAX_ABSENT = 1024
FIRST_RETRY_S = 1.0
MAX_RETRY_S = 60.0


@dataclass(frozen=True, slots=True)
class History:
    """What is known of the fetches of one key set, host-wide. Instants in monotonic seconds.

    `attempt_at`: when the latest attempt began; `success_at`: when the latest successful one did
    (None: never). `failures`: attempts since then, one in flight included (its worker may die
    and tell nobody). `owed_until`: when the allowance is whole again.
    """

    attempt_at: float | None = None
    success_at: float | None = None
    failures: int = 0
    owed_until: float = 0.0


@dataclass(frozen=True, slots=True)
class RefreshPolicy:
    """The answers, for one issuer. All values in seconds; see `JwksConfig`."""

    refresh_s: float
    cool_down_s: float
    stale_for_s: float

    def allowed_at(self, history: History) -> float:
        """The instant from which one more fetch is within the allowance."""
        return history.owed_until - (BURST - 1) * self.cool_down_s

    def begun(self, history: History, now: float) -> History:
        """`history` after a fetch begins at `now`: paid for, and failed until it succeeds."""
        owed_until = max(history.owed_until, now) + self.cool_down_s
        return History(now, history.success_at, history.failures + 1, owed_until)

    def succeeded(self, history: History) -> History:
        return History(history.attempt_at, history.attempt_at, 0, history.owed_until)

    def due_at(self, history: History, jitter: float) -> float:
        """When the set should be fetched without anybody asking. `jitter`: 0 to 1, random.

        After failures the wait starts at a second and doubles up to a minute (or to `refresh_s`
        when that is shorter). Jitter keeps hosts that started together from asking together.
        """
        if history.attempt_at is None:
            return 0.0
        if history.failures:
            longest = min(MAX_RETRY_S, self.refresh_s)
            wait = min(FIRST_RETRY_S * 2.0 ** min(history.failures - 1, 30), longest)
        else:
            wait = self.refresh_s
        wait *= 0.8 + 0.2 * jitter
        return max(history.attempt_at + wait, self.allowed_at(history))

    def is_usable(self, history: History, now: float) -> bool:
        """Whether the last good set may still be used, however stale."""
        return history.success_at is not None and now - history.success_at <= self.stale_for_s


class AbsentKeys:
    """Key ids that a fetch has lately shown to be unknown: they cause no further fetch for one
    cool-down. Bounded; forgetting one costs at most a fetch out of the allowance."""

    __slots__ = ("_cool_down_s", "_until")

    def __init__(self, cool_down_s: float) -> None:
        self._cool_down_s = cool_down_s
        self._until: OrderedDict[tuple[str | None, str], float] = OrderedDict()

    def remember(self, kid: str | None, algorithm: str, now: float) -> None:
        self._until[kid, algorithm] = now + self._cool_down_s
        self._until.move_to_end((kid, algorithm))
        if len(self._until) > MAX_ABSENT:
            self._until.popitem(last=False)

    def until(self, kid: str | None, algorithm: str) -> float:
        """Until when it causes none; 0 when it may."""
        return self._until.get((kid, algorithm), 0.0)

    def holds(self, kid: str | None, algorithm: str, now: float) -> bool:
        until = self._until.get((kid, algorithm))
        if until is None or now < until:
            return until is not None
        del self._until[kid, algorithm]
        return False

    def __repr__(self) -> str:
        return f"AbsentKeys({len(self._until)} of at most {MAX_ABSENT})"
