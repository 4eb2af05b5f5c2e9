"""When a first token is late enough for a second try. Pure."""

from __future__ import annotations

from collections import deque
from typing import Protocol

_LATEST = 256
_ENOUGH = 20
"""Before so many are known nothing counts as late."""
_ANEW = 16
"""The percentile is computed again after so many."""
NEVER_S = float("inf")


class HedgeSettings(Protocol):
    """Exactly one of them is set."""

    @property
    def after_s(self) -> float | None: ...

    @property
    def after_p95_factor(self) -> float | None: ...


class Lateness:
    """After how many seconds a try is late: a fixed time, or so many times the 95th percentile of
    the model's latest first tokens; never before its first token was predicted to come."""

    def __init__(self, settings: HedgeSettings) -> None:
        self._after_s = settings.after_s
        self._factor = settings.after_p95_factor or 0.0
        self._latest: dict[str, deque[float]] = {}
        self._p95: dict[str, float] = {}
        self._seen: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<Lateness after_s={self._after_s} factor={self._factor} {self._p95}>"

    def after_s(self, model: str, predicted_s: float) -> float:
        if self._after_s is not None:
            return max(self._after_s, predicted_s)
        return max(self._factor * self._p95.get(model, NEVER_S), predicted_s)

    def observed(self, model: str, seconds: float) -> None:
        """A first token of `model` came so long after its first try began."""
        if self._after_s is not None:
            return
        latest = self._latest.setdefault(model, deque(maxlen=_LATEST))
        latest.append(seconds)
        seen = self._seen[model] = self._seen.get(model, 0) + 1
        if seen == _ENOUGH or (seen > _ENOUGH and seen % _ANEW == 0):
            self._p95[model] = sorted(latest)[int(len(latest) * 0.95)]
