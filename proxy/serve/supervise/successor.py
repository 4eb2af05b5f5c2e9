"""The gateway that takes our place: started on SIGUSR2, and stood in for by PID 1.

PID 1 of a container must not exit, or the container ends. It stays when its work is done, passes
signals on to whoever serves now, reaps, and leaves with the last one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence

from proxy.serve.supervise.control import NobodyThere, visit

REPLACE = "--replace"


class Successor:
    """`pid` is 0 while there is none."""

    def __init__(self, signals: Sequence[signal.Signals], own_pid: int) -> None:
        self.pid = 0
        self.took_over = False
        self.exit_code = 0
        self._signals = signals
        self._is_first = own_pid == 1
        self._control_path = ""
        self._gone = False

    def __repr__(self) -> str:
        return f"<Successor pid={self.pid} took_over={self.took_over}>"

    @property
    def guarded(self) -> bool:
        """Whether we have to stay for it."""
        return self.took_over and self._is_first and not self._gone

    def start(self) -> None:
        """Run our own command once more, as it was given, to take our place. Raises OSError."""
        arguments = [sys.executable, *sys.orig_argv[1:]]
        if REPLACE not in arguments:
            arguments.append(REPLACE)
        self.pid = os.posix_spawn(
            sys.executable, arguments, os.environ, setsigmask=(), setsigdef=self._signals
        )

    def call_off(self) -> None:
        """We end: one that is only starting must not go on alone."""
        if self.pid and not self.took_over:
            with contextlib.suppress(ProcessLookupError):  # about to be reaped
                os.kill(self.pid, signal.SIGTERM)

    def takes_over(self, pid: int, control_path: str) -> None:
        """It serves now, and answers at `control_path`."""
        self.pid = pid
        self.took_over = True
        self._control_path = control_path

    def forward(self, number: signal.Signals) -> None:
        """To whoever serves by now: it may have been replaced itself."""
        with contextlib.suppress(NobodyThere):  # it has closed its control socket: it is ending
            visitor = visit(self._control_path)
            self.pid = visitor.pid
            visitor.channel.close()
        with contextlib.suppress(ProcessLookupError):  # about to be reaped
            os.kill(self.pid, number)

    def reaped(self, codes: dict[int, int], none_left: bool) -> int | None:
        """Take note of children that were no workers. Returns the exit status of a successor that
        ended before it took over."""
        code = codes.get(self.pid) if self.pid else None
        if not self.took_over:
            if code is not None:
                self.pid = 0
            return code
        if codes:
            last = codes.get(self.pid, list(codes.values())[-1])
            self.exit_code = last if last >= 0 else 128 - last
        self._gone = none_left
        return None
