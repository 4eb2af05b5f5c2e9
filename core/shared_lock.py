"""A lock between the processes of one host, held for microseconds at a time.

A POSIX record lock on a file without a name: the kernel gives it up for a process that dies. One
that is stopped while it holds it must not hold up the others, so they try for a while only.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time

_EAGER = 20
ATTEMPTS = 40
_PAUSE_S = 0.00005


class SharedLock:
    """To be made before the fork. Of its `attempts` all but the first few are 50 us apart."""

    def __init__(self, attempts: int = ATTEMPTS) -> None:
        self._attempts = attempts
        with tempfile.TemporaryFile() as file:
            self._file = os.dup(file.fileno())

    def __repr__(self) -> str:
        return f"<SharedLock {self._file}>"

    def take(self) -> bool:
        """Whether it was to be had, with the usual attempts within a millisecond or two. Blocks so
        long."""
        for number in range(self._attempts):
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if number < _EAGER:
                    os.sched_yield()
                else:
                    time.sleep(_PAUSE_S)
            else:
                return True
        return False

    def give(self) -> None:
        """Idempotent."""
        fcntl.lockf(self._file, fcntl.LOCK_UN)
