"""Names for requests: 128 random bits each, drawn from the system many at a time."""

from __future__ import annotations

import os

_DRAWN = 256


class RandomIds:
    """32 hexadecimal digits each."""

    def __init__(self) -> None:
        self._pool = ""
        self._at = 0

    def __repr__(self) -> str:
        return f"<RandomIds {len(self._pool) - self._at} digits left>"

    def forget(self) -> None:
        """Draw anew: a forked worker must not repeat what its siblings use."""
        self._at = len(self._pool)

    def draw(self) -> str:
        at = self._at
        if at >= len(self._pool):
            self._pool = os.urandom(16 * _DRAWN).hex()
            at = 0
        self._at = at + 32
        return self._pool[at : at + 32]


request_ids = RandomIds()
os.register_at_fork(after_in_child=request_ids.forget)
