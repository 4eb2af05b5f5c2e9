"""The parent of the workers: single-threaded, without an event loop, and small so as not to fail.

It forks the workers, which share everything made before, starts dead ones again, and ends them
in order. Signals arrive as bytes in a pipe (PEP 475's wakeup fd), so that nothing happens inside
a handler. It reaps every child, its own or not, and so can be PID 1 of a container.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from core.clock import Clock
from proxy.serve.respawn import Respawn
from proxy.serve.worker import EXIT_CONFIG, Pipes, Work, run_worker
from proxy.sockets import Sockets

KILL_MARGIN_S = 2.0
"""Workers end their streams themselves when the grace period is over; this much later they are
killed."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP)
_READY = struct.Struct("=II")


@dataclass(slots=True)
class _Worker:
    """One place for a worker. `pid` is 0 while none lives; `start_at` is when the next one is
    due. Instants are monotonic seconds."""

    index: int
    pid: int = 0
    ready: bool = False
    started_at: float = 0.0
    start_at: float = 0.0
    respawn: Respawn = field(default_factory=Respawn)


def say(text: str) -> None:
    """One line to the operator, on stderr."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"headrace: {text}\n")
        sys.stderr.flush()


class Supervisor:
    """Keeps `workers` processes that run `work` alive until told to stop.

    `sockets` are already bound; they are closed here when the workers begin to drain. `drain_s`
    is how long workers may take to end their exchanges. `on_death(index)` is called after a
    worker was reaped and before its successor is forked. `scheme` is for the announcement.
    """

    def __init__(
        self,
        work: Work,
        *,
        workers: int,
        sockets: Sockets,
        drain_s: float = 30.0,
        on_death: Callable[[int], None] = lambda index: None,
        scheme: str = "https",
        clock: Clock = time.monotonic,
    ) -> None:
        self._work = work
        self._workers = [_Worker(index) for index in range(workers)]
        self._sockets = sockets
        self._drain_s = drain_s
        self._on_death = on_death
        self._scheme = scheme
        self._clock = clock
        self._pipes = Pipes()
        self._kill_at = math.inf
        self._stopping = False
        self._announced = False
        self._exit_code = 0

    def __repr__(self) -> str:
        return f"<Supervisor workers={self._workers} stopping={self._stopping}>"

    def run(self) -> int:
        """Until stopped; returns the exit status. To be called once, on the main thread."""
        for number in _SIGNALS:
            signal.signal(number, _noted)
        signal.set_wakeup_fd(self._pipes.signal_write, warn_on_full_buffer=False)
        # What was made so far is shared with the workers: collecting it would copy its pages.
        gc.collect()
        gc.freeze()
        try:
            while not (self._stopping and not self._living()):
                self._start_due()
                self._wait()
                self._handle_signals()
                self._reap()
                self._kill_overdue()
        finally:
            self._sockets.close()
            self._sockets.remove_files()
        return self._exit_code

    def _living(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker.pid]

    def _start_due(self) -> None:
        for worker in self._workers:
            if not self._stopping and not worker.pid and worker.start_at <= self._clock():
                self._fork(worker)

    def _fork(self, worker: _Worker) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        worker.started_at = self._clock()
        worker.ready = False
        # A signal between the fork and the child's own handlers must wait for those.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                run_worker(self._work, worker.index, self._pipes, _SIGNALS, self._report_ready)
            worker.pid = pid
        except OSError as error:
            worker.start_at = worker.respawn.after_death(worker.started_at, self._clock())
            say(f"cannot start worker {worker.index}: {error.strerror}")
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    def _report_ready(self, index: int) -> None:
        """Called in the worker. So few bytes are written at once (pipe(7), PIPE_BUF)."""
        os.write(self._pipes.ready_write, _READY.pack(index, os.getpid()))

    def _wait(self) -> None:
        """Until a signal, a report, or the next instant at which something is due."""
        due_at = self._kill_at
        if not self._stopping:
            due_at = min([w.start_at for w in self._workers if not w.pid], default=math.inf)
        poll = select.poll()
        poll.register(self._pipes.signal_read, select.POLLIN)
        poll.register(self._pipes.ready_read, select.POLLIN)
        delay_s = max(0.0, due_at - self._clock())
        poll.poll(None if math.isinf(delay_s) else math.ceil(delay_s * 1000))

    def _handle_signals(self) -> None:
        for number in self._pipes.read(self._pipes.signal_read):
            if number in (signal.SIGTERM, signal.SIGINT):
                self._stop(signal.Signals(number).name)
            elif number == signal.SIGHUP:
                say("SIGHUP is ignored: restart to use a changed configuration")

    def _stop(self, why: str) -> None:
        """Begin to drain; asked a second time, end at once."""
        if self._stopping:
            self._kill_at = self._clock()
            return
        self._stopping = True
        self._kill_at = self._clock() + self._drain_s + KILL_MARGIN_S
        say(f"stopping ({why}): {len(self._living())} workers end their exchanges")
        # The workers' copies alone decide from here on whether connections are accepted.
        self._sockets.close()
        self._signal_workers(signal.SIGTERM)

    def _signal_workers(self, number: signal.Signals) -> None:
        for worker in self._living():
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, number)

    def _kill_overdue(self) -> None:
        if self._clock() >= self._kill_at and (late := self._living()):
            say(f"killing {len(late)} workers that did not end in time")
            self._signal_workers(signal.SIGKILL)
            self._kill_at = math.inf

    def _reap(self) -> None:
        ended: dict[int, int] = {}
        with contextlib.suppress(ChildProcessError):
            while (child := os.waitpid(-1, os.WNOHANG))[0]:
                ended[child[0]] = child[1]
        # After the above, so that what a dead worker reported has arrived.
        self._note_ready()
        for worker in self._living():
            if worker.pid in ended:
                self._died(worker, ended[worker.pid])

    def _note_ready(self) -> None:
        for index, pid in _READY.iter_unpack(self._pipes.read(self._pipes.ready_read)):
            if self._workers[index].pid == pid:
                self._workers[index].ready = True
        if not self._announced and all(worker.ready for worker in self._workers):
            self._announced = True
            places = [self._place(bound.address) for bound in self._sockets.listen]
            say(f"listening on {', '.join(places)} with {len(self._workers)} workers")

    def _place(self, address: object) -> str:
        text = str(address)
        return text if text.startswith("unix:") else f"{self._scheme}://{text}"

    def _died(self, worker: _Worker, status: int) -> None:
        pid, worker.pid = worker.pid, 0
        now = self._clock()
        try:
            self._on_death(worker.index)
        except Exception as error:  # noqa: BLE001 - bookkeeping must not end the service
            say(f"the counters of worker {worker.index} are lost: {error!r}")
        code = os.waitstatus_to_exitcode(status)
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        if self._stopping:
            if code != 0:
                say(f"worker {worker.index} (pid {pid}) ended with {how}")
            return
        if code == EXIT_CONFIG and not worker.ready and not self._announced:
            self._exit_code = EXIT_CONFIG
            self._stop(f"worker {worker.index} could not start")
            return
        worker.start_at = worker.respawn.after_death(worker.started_at, now)
        say(
            f"worker {worker.index} (pid {pid}) ended with {how} after "
            f"{now - worker.started_at:.1f} s; its successor starts in "
            f"{worker.respawn.delay_s:g} s"
        )


def _noted(number: int, frame: object) -> None:
    """The byte in the pipe is all that is needed; the default action must not happen."""
