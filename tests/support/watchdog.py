"""What ends a run that hangs."""

from __future__ import annotations

import faulthandler
import math
import os
import time

HANG_S = 900.0 if "HEADRACE_VLLM" in os.environ else 120.0  # a vLLM takes minutes to start
_SET_ANEW_S = 10.0


class Watchdog:
    """Shows the stacks of all threads and ends the process when a test takes longer than HANG_S.

    So does pytest's `faulthandler_timeout`, with a thread for each test: to start and to join it
    takes longer than most tests do. This one is set anew only now and then.
    """

    def __init__(self, stderr: int) -> None:
        self._stderr = os.dup(stderr)  # the real one: during a test another has its number
        self._set_at = -math.inf

    def __repr__(self) -> str:
        return f"<Watchdog set at {self._set_at}>"

    def pytest_runtest_logstart(self) -> None:
        now = time.monotonic()
        if now >= self._set_at + _SET_ANEW_S:
            faulthandler.dump_traceback_later(HANG_S + _SET_ANEW_S, exit=True, file=self._stderr)
            self._set_at = now

    def pytest_exception_interact(self) -> None:
        self._set_at = -math.inf  # pytest has cancelled it

    def pytest_unconfigure(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        os.close(self._stderr)
