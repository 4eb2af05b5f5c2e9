"""The supervisor's workers as processes: forked, spoken to, started again, counted out."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from proxy.serve.supervise.channel import Channel
from proxy.serve.supervise.messages import Message
from proxy.serve.supervise.names import CORE, name_of
from proxy.serve.supervise.respawn import Respawn
from proxy.serve.supervise.worker import Work, run_worker


@dataclass(slots=True)
class Child:
    """One place for a worker, or for the core. `pid` is 0 while none lives; `start_at` is when the
    next one is due. Instants are monotonic seconds."""

    index: int
    pid: int = 0
    ready: bool = False
    started_at: float = 0.0
    start_at: float = 0.0
    channel: Channel | None = None
    respawn: Respawn = field(default_factory=Respawn)

    @property
    def name(self) -> str:
        return name_of(self.index)

    @property
    def vital(self) -> bool:
        """Workers do without the core."""
        return self.index != CORE

    def hang_up(self) -> None:
        """Close the line to it."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None


@dataclass(frozen=True, slots=True)
class Ended:
    """Processes that were reaped: workers, and others, by pid. `none_left`: there is no child any
    more, of whatever kind. Codes are those of `os.waitstatus_to_exitcode`."""

    workers: list[tuple[Child, int]]
    others: dict[int, int]
    none_left: bool


class Children:
    """`signals` are blocked while a worker is forked. `close_others()` is called in the worker, to
    close what only the supervisor may hold."""

    def __init__(
        self,
        work: Work,
        count: int,
        signals: Sequence[signal.Signals],
        close_others: Callable[[], None],
        *,
        core: bool = False,
    ) -> None:
        self._work = work
        self._signals = signals
        self._close_others = close_others
        self.places = [Child(index) for index in range(count)]
        if core:
            self.places.insert(0, Child(CORE))

    def __repr__(self) -> str:
        return f"<Children {[child.pid for child in self.places]}>"

    @property
    def living(self) -> list[Child]:
        return [child for child in self.places if child.pid]

    @property
    def living_workers(self) -> int:
        """How many workers live."""
        return sum(child.vital for child in self.living)

    def all_ready(self, *, with_core: bool) -> bool:
        """Whether all workers accept connections, which they do without the core too. A gateway
        whose place is to be taken has one, so without one it is not taken."""
        return all(child.ready for child in self.places if with_core or child.vital)

    @property
    def due_at(self) -> float:
        """When the next one is to be started."""
        return min((child.start_at for child in self.places if not child.pid), default=math.inf)

    def start_due(self, now: float, greeting: Message) -> str:
        """Start those that are due, and send each `greeting` first. Returns what went wrong."""
        for child in self.places:
            if not child.pid and child.start_at <= now:
                try:
                    self._fork(child, now, greeting)
                except OSError as error:
                    child.start_at = child.respawn.after_death(now, now)
                    return f"cannot start {child.name}: {error.strerror}"
        return ""

    def _fork(self, child: Child, now: float, greeting: Message) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        ours, theirs = Channel.pair()
        # A signal between the fork and the child's own handlers must wait for those.
        signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)
        try:
            pid = os.fork()
            if pid == 0:
                child.channel = ours
                run_worker(self._work, child.index, theirs, self._signals, self._close_all)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._signals)
        child.pid, child.channel = pid, ours
        child.started_at, child.ready = now, False
        ours.send(greeting)

    def _close_all(self) -> None:
        """In a worker. Each line must end with the supervisor: no other may hold an end of it."""
        for child in self.places:
            child.hang_up()
        self._close_others()

    def tell(self, message: Message) -> list[int]:
        """Send to every living worker; their indexes."""
        for child in self.living:
            if child.channel is not None:
                child.channel.send(message)
        return [child.index for child in self.living]

    def kill(self) -> int:
        """All that live; how many."""
        for child in self.living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
        return len(self.living)

    def reap(self) -> Ended:
        """Collect the dead. Their places are not free before `bury`."""
        codes: dict[int, int] = {}
        none_left = False
        try:
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                codes[found[0]] = os.waitstatus_to_exitcode(found[1])
        except ChildProcessError:
            none_left = True
        workers = [(child, codes.pop(child.pid)) for child in self.living if child.pid in codes]
        return Ended(workers, codes, none_left)

    def bury(self, child: Child, now: float) -> None:
        """Free the place of a dead worker, and settle when the next one starts."""
        child.hang_up()
        child.pid = 0
        child.start_at = child.respawn.after_death(child.started_at, now)


def ended_how(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"
