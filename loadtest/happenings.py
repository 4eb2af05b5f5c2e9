"""What is done to the server in the middle of a run: commands at set instants. Performs.

A scenario says when what happens, by name (`replica_down`); whoever runs it says what command that
is. A command that fails is noted, and the run goes on. One shell, started beforehand, runs them
all: to start a process in the middle of a run would hold the client up until the system has it.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from loadtest.record import Happened
from loadtest.scenario import Happening


class Happenings:
    """A context; `begin` once the run's begin is known. What runs at its end is left to end."""

    def __init__(self, planned: Sequence[Happening], commands: Mapping[str, str]) -> None:
        self._planned = sorted(planned, key=lambda each: each.at_s)
        self._commands = commands
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._shell: subprocess.Popen[str] | None = None
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
        shell = self._shell
        if shell is not None and self._thread is not None:
            shell.kill()  # its command goes on
            self._thread.join()
            shell.communicate()

    def begin(self, began_at: float) -> None:
        """`began_at`: the run's first instant."""
        if self._planned:
            pipe = subprocess.PIPE
            self._shell = subprocess.Popen(
                ["/bin/sh"],
                stdin=pipe,
                stdout=pipe,
                text=True,
                start_new_session=True,  # an interrupt from the terminal is for the client
            )
            self._thread = threading.Thread(target=self._go, args=(began_at,), daemon=True)
            self._thread.start()

    def _go(self, began_at: float) -> None:
        for each in self._planned:
            wait_s = began_at + each.at_s - time.perf_counter()
            if self._over.wait(max(0.0, wait_s)):
                return
            at = time.perf_counter()
            self.done.append(Happened(each.do, at, self._do(self._commands[each.do])))

    def _do(self, command: str) -> str:
        """What went wrong, if anything."""
        shell = self._shell
        assert shell is not None
        assert shell.stdin is not None
        assert shell.stdout is not None
        try:
            shell.stdin.write(f"( {command}\n) </dev/null >/dev/null 2>&1; echo $?\n")
            shell.stdin.flush()
        except BrokenPipeError:
            return "the run has ended"
        status = shell.stdout.readline().strip()
        if not status:
            return "it had not ended when the run did"
        return "" if status == "0" else f"status {status}"
