"""How fast the body of a request must arrive: one rule for every protocol."""

from __future__ import annotations

from core.errors import RequestTimeout
from proxy.config import ListenTimeouts

_GRACE_S = 5.0  # a body's rate is not judged earlier: one lost packet costs a second or more
_LOOK_S = 1.0


def first_look(started_at: float, timeouts: ListenTimeouts) -> float:
    """When to judge a body that began at `started_at` for the first time."""
    return started_at + min(_GRACE_S, timeouts.body_s)


def next_look(started_at: float, received: int, timeouts: ListenTimeouts, now: float) -> float:
    """Judge a body of which `received` bytes have come, and say when to do so again. Raises
    RequestTimeout."""
    elapsed = now - started_at
    if elapsed < timeouts.body_s and received >= timeouts.body_min_rate * elapsed:
        return min(now + _LOOK_S, started_at + timeouts.body_s)
    raise RequestTimeout("The body did not arrive in time.")
