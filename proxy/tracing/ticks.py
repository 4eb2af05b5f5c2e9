"""When the tokens of a traced stream came, in a bounded number of instants. Pure."""

from __future__ import annotations

from core.clock import Clock

MOST = 32


class Ticks:
    """In place of the clock that times each read of a stream with tokens: what it says is also
    written down. Of a long stream every second read is kept, then every fourth, and so on."""

    __slots__ = ("_apart", "_clock", "kept", "reads")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._apart = 1
        self.reads = 0
        self.kept: list[tuple[int, float]] = []

    def __repr__(self) -> str:
        return f"<Ticks {len(self.kept)} of {self.reads}>"

    def __call__(self) -> float:
        now = self._clock()
        self.reads += 1
        if self.reads % self._apart == 0:
            if len(self.kept) == MOST:
                del self.kept[::2]
                self._apart *= 2
            if self.reads % self._apart == 0:
                self.kept.append((self.reads, now))
        return now
