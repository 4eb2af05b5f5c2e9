"""What happens in a forked worker: an event loop of its own, told by signals when to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NoReturn

import uvloop

from core.errors import ConfigError

EXIT_CONFIG = 2
EXIT_FAILED = 1

Ready = Callable[[], None]
Work = Callable[[int, asyncio.Event, Ready], Coroutine[Any, Any, None]]
"""`work(index, stop, ready)`: serves until `stop` is set and its exchanges are over; calls `ready`
once it accepts connections."""


class Pipes:
    """The supervisor's pipes: signals noted, workers' reports, and one whose only writer is the
    supervisor, so that its end tells the workers that the supervisor is gone."""

    def __init__(self) -> None:
        self.signal_read, self.signal_write = os.pipe()
        self.ready_read, self.ready_write = os.pipe()
        self.life_read, self.life_write = os.pipe()
        for descriptor in (self.signal_read, self.signal_write, self.ready_read):
            os.set_blocking(descriptor, False)

    def __repr__(self) -> str:
        return f"<Pipes signal={self.signal_read} ready={self.ready_read} life={self.life_read}>"

    @staticmethod
    def read(descriptor: int) -> bytes:
        with contextlib.suppress(BlockingIOError):
            return os.read(descriptor, 4096)
        return b""

    def close_supervisors_ends(self) -> None:
        """In a worker: keep only what it needs."""
        for descriptor in (self.signal_read, self.signal_write, self.ready_read, self.life_write):
            os.close(descriptor)


def run_worker(
    work: Work,
    index: int,
    pipes: Pipes,
    blocked: Sequence[signal.Signals],
    report_ready: Callable[[int], None],
) -> NoReturn:
    """The whole life of the forked process; never returns into the supervisor's frames."""
    code = EXIT_FAILED
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # A terminal sends these to the whole group; what to do about them is the supervisor's.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        pipes.close_supervisors_ends()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(work, index, pipes.life_read, blocked, report_ready))
        code = 0
    except ConfigError as error:
        code = EXIT_CONFIG
        sys.stderr.write("".join(f"headrace: {line}\n" for line in str(error).splitlines()))
    except BaseException:  # noqa: BLE001 - the process ends here, whatever it was
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


async def _serve(
    work: Work,
    index: int,
    life: int,
    blocked: Sequence[signal.Signals],
    report_ready: Callable[[int], None],
) -> None:
    # Requests leave few cycles behind; looking for them 700 allocations apart costs 5 % of a core.
    gc.set_threshold(20_000, 20, 20)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)

    def orphaned() -> None:
        loop.remove_reader(life)
        stop.set()

    loop.add_reader(life, orphaned)
    await work(index, stop, lambda: report_ready(index))
