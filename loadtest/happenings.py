"""What is done to the server in the middle of a run: commands at set instants. Performs.

A scenario says when what happens, by name (`replica_down`); whoever runs it says what command that
is. A command that cannot run or fails is noted, and the run goes on.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from loadtest.record import Happened
from loadtest.scenario import Happening

_LONGEST_S = 60.0


class Happenings:
    """Entered once the run's begin is known."""

    def __init__(self, planned: Sequence[Happening], commands: Mapping[str, str]) -> None:
        self._planned = sorted(planned, key=lambda each: each.at_s)
        self._commands = commands
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.done: list[Happened] = []

    def __repr__(self) -> str:
        return f"<Happenings {len(self.done)} of {len(self._planned)}>"

    def __enter__(self) -> Happenings:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def begin(self, began_at: float) -> None:
        """`began_at`: the run's first instant."""
        if self._planned:
            self._thread = threading.Thread(target=self._go, args=(began_at,), daemon=True)
            self._thread.start()

    def _go(self, began_at: float) -> None:
        for each in self._planned:
            wait_s = began_at + each.at_s - time.perf_counter()
            if self._over.wait(max(0.0, wait_s)):
                return
            self.done.append(Happened(each.do, time.perf_counter(), self._do(each.do)))

    def _do(self, name: str) -> str:
        """ "" or what went wrong."""
        try:
            done = subprocess.run(
                self._commands[name],
                shell=True,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_LONGEST_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if done.returncode:
            return f"status {done.returncode}: {done.stderr.strip()[:200]}"
        return ""
