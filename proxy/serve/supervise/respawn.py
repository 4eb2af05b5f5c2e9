"""When a dead worker is started again: soon, but ever later while it keeps dying young."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 10.0
LIVED_LONG_S = 30.0


@dataclass(slots=True)
class Respawn:
    """The back-off of one worker's place. Instants are monotonic seconds."""

    delay_s: float = 0.0
    """The last delay; 0 when none was needed yet."""

    def after_death(self, started_at: float, now: float) -> float:
        """The instant of the next start. The delay doubles with each death, and is the first
        again once a worker lived LIVED_LONG_S."""
        if self.delay_s == 0.0 or now - started_at >= LIVED_LONG_S:
            self.delay_s = FIRST_DELAY_S
        else:
            self.delay_s = min(self.delay_s * 2, LONGEST_DELAY_S)
        return now + self.delay_s
