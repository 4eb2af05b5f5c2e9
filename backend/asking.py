"""Whose turn it is to ask a replica, where several workers would like to know the same. Pure.

Whoever is due first asks, and says so; the others wait for what it hears as long as an answer may
take, then the next one asks. So nobody has to be there for it, and who dies is not missed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

LOOK_S = 0.25
"""How often a worker looks for what others have heard."""

T = TypeVar("T")


class Asking(Generic[T]):
    """One kind of question to one replica. `heard` tells what any worker heard last, and when;
    `begun_at` when one last began to ask; `doubted_at` since when somebody would like to know more.
    An answer takes `timeout_s` at most."""

    def __init__(
        self,
        heard: Callable[[], tuple[float, T] | None],
        begun_at: Callable[[], float],
        doubted_at: Callable[[], float],
        timeout_s: float,
        now: float,
        *,
        look_s: float | None = None,
    ) -> None:
        self._heard = heard
        self._begun_at = begun_at
        self._doubted_at = doubted_at
        self._timeout_s = timeout_s
        self._look_s = LOOK_S if look_s is None else look_s
        self._known_at = now
        self._due_at = now

    def __repr__(self) -> str:
        return f"<Asking, known at {self._known_at:.3f}, due at {self._due_at:.3f}>"

    def news(self) -> T | None:
        """What another worker has heard since this one last knew."""
        found = self._heard()
        if found is None or found[0] <= self._known_at:
            return None
        self._known_at = found[0]
        return found[1]

    def my_turn(self, now: float) -> bool:
        """Whether to ask now."""
        if now < self._due_at and self._doubted_at() <= self._known_at:
            return False
        begun_at = self._begun_at()
        return begun_at <= self._known_at or now - begun_at > self._timeout_s

    def known(self, at: float) -> None:
        """This worker has asked and had its answer."""
        self._known_at = max(self._known_at, at)

    def wait(self, now: float, seconds: float) -> None:
        """It need not be known again for so long."""
        self._due_at = now + seconds

    def pause(self, now: float) -> float:
        """Seconds until the next look."""
        left_s = self._due_at - now
        return min(left_s, self._look_s) if left_s > 0 else self._look_s
