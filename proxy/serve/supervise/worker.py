"""What happens in a forked worker: an event loop of its own, and a line to the supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NoReturn, Protocol

import uvloop

from core.errors import ConfigError
from core.tasks import spawn
from proxy.serve.supervise.channel import Channel
from proxy.serve.supervise.messages import (
    Commit,
    Committed,
    Drain,
    Drop,
    Message,
    Outcome,
    Ready,
    Refused,
    Stage,
    Staged,
)

EXIT_CONFIG = 2
EXIT_FAILED = 1


class Reloadable(Protocol):
    """What a worker can be told of its configuration, see `Worker` in app.py."""

    async def stage(self, text: bytes, path: str) -> None: ...

    def commit(self) -> None: ...

    def drop(self) -> None: ...

    def told(self, outcome: Outcome) -> None: ...

    def connect(self, say: Callable[[Message], None]) -> None:
        """From now on the supervisor hears what is said here."""


class Stop:
    """When a worker is to end, and how."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._at_once = asyncio.Event()
        self._drain = Drain()

    def __repr__(self) -> str:
        return f"<Stop asked={self._asked.is_set()} at_once={self._at_once.is_set()}>"

    def set(self, drain: Drain | None = None) -> None:
        """The first one counts, except that any may say `at_once`."""
        if not self._asked.is_set():
            self._drain = drain or self._drain
            self._asked.set()
        if drain is not None and drain.at_once:
            self._at_once.set()

    async def wait(self) -> Drain:
        """Until asked for the first time."""
        await self._asked.wait()
        return self._drain

    async def pause(self, seconds: float) -> None:
        """Sleep, but not once the end is due."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._at_once.wait(), seconds)

    async def bear(self, ending: Coroutine[Any, Any, None]) -> bool:
        """Run `ending`; when the end is due before it is through, cancel it and return False."""
        task = spawn(ending, "ending")
        waiting = spawn(self._at_once.wait(), "at once")
        await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
            return False
        task.result()
        return True


Work = Callable[[int, Stop, Callable[[Reloadable], None]], Coroutine[Any, Any, None]]
"""`work(index, stop, ready)`: serves until `stop` is set and its exchanges are over; calls `ready`
once it accepts connections, with what is to be told of new configurations."""


class Line:
    """The worker's end of the line: does what the supervisor says, in order, and answers."""

    def __init__(self, channel: Channel, stop: Stop) -> None:
        self._channel = channel
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._todo: deque[Message] = deque()
        self._busy = False
        self._worker: Reloadable | None = None
        self._loop.add_reader(channel.fileno(), self._read)

    def __repr__(self) -> str:
        return f"<Line {self._channel} todo={len(self._todo)}>"

    def ready(self, worker: Reloadable) -> None:
        """Configurations that came earlier are looked at now."""
        self._worker = worker
        self._say(Ready())
        worker.connect(self._say)
        self._go_on()

    def _read(self) -> None:
        for message in self._channel.receive():
            if isinstance(message, Drain):
                self._stop.set(message)
            else:
                self._todo.append(message)
        if self._channel.ended:  # the supervisor is gone
            self._loop.remove_reader(self._channel.fileno())
            self._stop.set()
        self._go_on()

    def _go_on(self) -> None:
        if self._worker is not None and self._todo and not self._busy:
            self._busy = True
            spawn(self._obey(self._worker), "reload")

    async def _obey(self, worker: Reloadable) -> None:
        try:
            while self._todo:
                message = self._todo.popleft()
                if isinstance(message, Stage):
                    await self._stage(worker, message)
                elif isinstance(message, Commit):
                    self._commit(worker, message)
                elif isinstance(message, Drop):
                    worker.drop()
                elif isinstance(message, Outcome):
                    worker.told(message)
        finally:
            self._busy = False

    async def _stage(self, worker: Reloadable, message: Stage) -> None:
        try:
            await worker.stage(message.text, message.path)
        except ConfigError as error:
            self._say(Refused(message.attempt, str(error)))
        except Exception as error:  # noqa: BLE001 - a fault of ours is a refusal, not a death
            traceback.print_exc()
            self._say(Refused(message.attempt, f"a worker failed to prepare it: {error!r}"))
        else:
            self._say(Staged(message.attempt))

    def _commit(self, worker: Reloadable, message: Commit) -> None:
        try:
            worker.commit()
        except Exception:  # noqa: BLE001 - the others have it: end, and let a successor start with it
            traceback.print_exc()
            self._stop.set()
        else:
            self._say(Committed(message.attempt))

    def _say(self, message: Message) -> None:
        self._channel.send(message)
        if self._channel.waits_to_send:
            self._loop.call_later(0.05, self._flush)

    def _flush(self) -> None:
        self._channel.flush()
        if self._channel.waits_to_send:
            self._loop.call_later(0.05, self._flush)


def run_worker(
    work: Work,
    index: int,
    channel: Channel,
    blocked: Sequence[signal.Signals],
    close_others: Callable[[], None],
) -> NoReturn:
    """The whole life of the forked process; never returns into the supervisor's frames.
    `close_others` closes what only the supervisor may hold."""
    code = EXIT_FAILED
    try:
        signal.set_wakeup_fd(-1)
        close_others()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # A terminal sends these to the whole group; what to do about them is the supervisor's.
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(work, index, channel, blocked))
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
    work: Work, index: int, channel: Channel, blocked: Sequence[signal.Signals]
) -> None:
    # Requests leave few cycles behind; looking for them 700 allocations apart costs 5 % of a core.
    # Looking at many objects at once stops everybody: what 5,000 new streams are made of took
    # 130 ms. What has outlived two looks is as good as never looked at again.
    gc.set_threshold(10_000, 2, 1_000)
    stop = Stop()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
    line = Line(channel, stop)
    await work(index, stop, line.ready)
