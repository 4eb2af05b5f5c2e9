"""The parent of the workers: single-threaded, without an event loop, and small so as not to fail.

It forks the workers, which share everything made before, starts dead ones again, has them take
new configurations, and ends them in order. Signals arrive as bytes in a pipe (PEP 475's wakeup
fd), so that nothing happens inside a handler. It reaps every child, its own or not, and so can be
PID 1 of a container.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence

from core.clock import Clock
from core.describe import counted
from proxy.listen.sockets import Sockets
from proxy.serve.supervise.channel import Channel
from proxy.serve.supervise.children import Child, Children, ended_how
from proxy.serve.supervise.control import ControlSocket
from proxy.serve.supervise.desk import Desk
from proxy.serve.supervise.messages import Drain, Found, Ready
from proxy.serve.supervise.reloader import Reloader
from proxy.serve.supervise.replace import Predecessor, give
from proxy.serve.supervise.run_dir import NO_PLACE
from proxy.serve.supervise.service_manager import notify
from proxy.serve.supervise.successor import Successor
from proxy.serve.supervise.supervised import Service
from proxy.serve.supervise.worker import EXIT_CONFIG, EXIT_FAILED

KILL_MARGIN_S = 3.0
"""Workers end their streams themselves when the grace period is over; this much later they are
killed."""
START_S = 60.0
"""A gateway that is to take another's place must be ready after so many seconds."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP, signal.SIGUSR2)
_ENDING = (signal.SIGTERM, signal.SIGINT)


def say(text: str) -> None:
    """One line to the operator, on stderr."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"headrace: {text}\n")
        sys.stderr.flush()


class Supervisor:
    """Keeps the workers of `service` alive until told to stop.

    `sockets` are bound already, or came from `predecessor`, whose place is to be taken.
    `make_control` makes the control socket, if there is to be one: at once, or when the
    predecessor has to go. It may raise ConfigError.
    """

    def __init__(
        self,
        service: Service,
        sockets: Sockets,
        *,
        make_control: Callable[[], ControlSocket | None] = lambda: None,
        predecessor: Predecessor | None = None,
        clock: Clock = time.monotonic,
        wall: Clock = time.time,
    ) -> None:
        self._service = service
        self._sockets = sockets
        self._make_control = make_control
        self._predecessor = predecessor
        self._clock = clock
        self._signal_read, self._signal_write = os.pipe()
        for descriptor in (self._signal_read, self._signal_write):
            os.set_blocking(descriptor, False)
        self._children = Children(
            service.work, service.workers, _SIGNALS, self._close_in_worker, core=service.core
        )
        self._reloader = Reloader(
            service, self._children.tell, say, seen=service.seen, now=clock(), wall=wall
        )
        self._desk: Desk | None = None
        self._successor = Successor(_SIGNALS, os.getpid())
        self._give_up_at = math.inf if predecessor is None else clock() + START_S
        self._kill_at = math.inf
        self._stopping = False
        self._at_once = False
        self._announced = False
        self._exit_code = 0

    def __repr__(self) -> str:
        return f"<Supervisor {self._children} stopping={self._stopping}>"

    def run(self) -> int:
        """Until stopped; returns the exit status. To be called once, on the main thread. Raises
        ConfigError when there can be no control socket."""
        for number in _SIGNALS:
            signal.signal(number, _noted)
        signal.set_wakeup_fd(self._signal_write, warn_on_full_buffer=False)
        try:
            if self._predecessor is None:
                self._open_desk()
            while not self._over():
                self._start_due()
                self._wait()
                self._handle_signals()
                self._reap()
                self._end_overdue()
        finally:
            self._close_desk()
            if self._predecessor is not None:
                self._predecessor.close()
            self._sockets.close()
            self._sockets.remove_files()
        return self._successor.exit_code if self._successor.took_over else self._exit_code

    def _over(self) -> bool:
        return self._stopping and not self._children.living and not self._successor.guarded

    def _start_due(self) -> None:
        if self._stopping:
            return
        now = self._clock()
        self._reloader.advance(now)
        if not self._reloader.busy and (
            fault := self._children.start_due(now, self._reloader.last)
        ):
            say(fault)

    def _close_in_worker(self) -> None:
        os.close(self._signal_read)
        os.close(self._signal_write)
        if self._desk is not None:
            self._desk.control.close(remove=False)
        if self._predecessor is not None:
            self._predecessor.hang_up()

    def _open_desk(self) -> None:
        control, service = self._make_control(), self._service
        if control is not None:
            self._desk = Desk(
                control,
                service.path,
                want=self._reloader.want,
                drain=service.drain,
                give=lambda to: give(to, self._sockets, service.secret, service.hosts),
                give_way=self._give_way,
                clock=self._clock,
            )

    def _close_desk(self) -> None:
        desk, self._desk = self._desk, None
        if desk is not None:
            desk.close()

    # --- what comes in

    def _wait(self) -> None:
        """Until a signal, a message, or the next instant at which something is due."""
        poll = select.poll()
        poll.register(self._signal_read, select.POLLIN)
        heed: dict[int, Callable[[], None]] = {}
        channels: dict[Channel, Callable[[], None]] = {
            child.channel: functools.partial(self._hear, child)
            for child in self._children.living
            if child.channel is not None
        }
        if (desk := self._desk) is not None:
            poll.register(desk.control, select.POLLIN)
            heed[desk.control.fileno()] = desk.control.admit
            for visitor in desk.control.visitors:
                channels[visitor.channel] = functools.partial(desk.attend, visitor)
        for channel, handler in channels.items():
            poll.register(channel, select.POLLIN | (select.POLLOUT * channel.waits_to_send))
            heed[channel.fileno()] = handler
        delay_s = max(0.0, self._due_at() - self._clock())
        for descriptor, _ in poll.poll(None if math.isinf(delay_s) else math.ceil(delay_s * 1000)):
            heed.get(descriptor, _nothing)()

    def _due_at(self) -> float:
        if self._stopping:
            return self._kill_at
        starts_at = math.inf if self._reloader.busy else self._children.due_at
        return min(starts_at, self._reloader.due_at, self._give_up_at)

    def _hear(self, child: Child) -> None:
        """What a worker says."""
        if child.channel is None:
            return
        child.channel.flush()
        for message in child.channel.receive():
            if isinstance(message, Ready):
                child.ready = True
            elif isinstance(message, Found):
                self._reloader.note(message.troubles)
                if changed := self._service.found(message):
                    self._reloader.want(changed)
            else:
                self._reloader.heard(child.index, message)
        if child.channel.ended:  # it is dying
            child.hang_up()
        ready = self._children.all_ready(with_core=self._predecessor is not None)
        if ready and not self._announced and not self._stopping:
            self._announce()

    def _handle_signals(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for number in os.read(self._signal_read, 4096):
                if number != signal.SIGCHLD:
                    self._signalled(signal.Signals(number))

    def _signalled(self, number: signal.Signals) -> None:
        if self._successor.guarded:
            self._successor.forward(number)
        elif number in _ENDING:
            # Whoever types Ctrl-C sees that it ends; nobody else has to be told first.
            self._stop(number.name, delay=number == signal.SIGTERM)
        elif self._stopping:
            say(f"{number.name} is ignored: it is stopping")
        elif number == signal.SIGHUP:
            self._reloader.want("SIGHUP")
        elif number == signal.SIGUSR2:
            self._start_successor()

    # --- beginning

    def _announce(self) -> None:
        """All workers accept connections."""
        self._announced = True
        self._give_up_at = math.inf
        places = [self._place(bound.address) for bound in self._sockets.listen]
        if (predecessor := self._predecessor) is not None:
            self._open_desk()
            self._predecessor = None
            predecessor.end([str(bound.address) for bound in self._sockets.all()])
            self._sockets.own_all()
            self._service.took_over()
            say(f"took the place of pid {predecessor.pid}, which ends when its streams do")
        workers = counted(self._service.workers, "worker")
        say(f"listening on {', '.join(places)} with {workers}")
        notify("READY=1")

    def _place(self, address: object) -> str:
        text = str(address)
        return text if text.startswith("unix:") else f"{self._service.scheme}://{text}"

    # --- being replaced

    def _start_successor(self) -> None:
        if self._desk is None:
            say(f"SIGUSR2 is ignored: {NO_PLACE}")
        elif self._successor.pid:
            say(f"SIGUSR2 is ignored: pid {self._successor.pid} is starting already")
        else:
            try:
                self._successor.start()
                say(f"SIGUSR2: pid {self._successor.pid} is to take our place")
            except OSError as error:
                say(f"cannot start a successor: {error.strerror}")

    def _give_way(self, pid: int, kept: Sequence[str]) -> None:
        """Process `pid` serves our sockets from now on."""
        if self._stopping or self._desk is None:
            return
        self._successor.takes_over(pid, self._desk.control.path)
        self._sockets.disown(kept)
        notify(f"MAINPID={pid}")
        self._stop(f"pid {pid} took our place", delay=True, handed_over=True)

    # --- ending

    def _stop(self, why: str, *, delay: bool = False, handed_over: bool = False) -> None:
        """Begin to drain; asked a second time, end now, and a third time, whatever happens."""
        service = self._service
        self._successor.call_off()
        if self._stopping:
            say(f"ending now ({why})")
            self._children.tell(Drain(at_once=True))
            margin_s = 0.0 if self._at_once else KILL_MARGIN_S
            self._kill_at = min(self._kill_at, self._clock() + margin_s)
            self._at_once = True
            return
        self._stopping = True
        grace_s = service.drain_s + (service.delay_s if delay else 0.0)
        self._kill_at = self._clock() + grace_s + KILL_MARGIN_S
        workers = counted(self._children.living_workers, "worker")
        say(f"stopping ({why}); to end their exchanges: {workers}")
        if not handed_over:
            notify("STOPPING=1")
        self._reloader.abandon("the gateway is stopping")
        self._close_desk()
        # The workers' copies alone decide from here on whether connections are accepted.
        self._sockets.close()
        self._children.tell(Drain(delay=delay, handed_over=handed_over))

    def _end_overdue(self) -> None:
        now = self._clock()
        if now >= self._give_up_at and not self._stopping:
            self._give_up_at = math.inf
            self._exit_code = EXIT_FAILED
            self._stop(f"not ready after {START_S:g} s; the running gateway goes on")
        if now >= self._kill_at:
            self._kill_at = math.inf  # also when nobody is left: it must not be due for ever
            if late := self._children.kill():
                say(f"killing {counted(late, 'process', 'processes')} that did not end in time")

    def _reap(self) -> None:
        ended = self._children.reap()
        for child, code in ended.workers:
            self._hear(child)  # its last words
            self._died(child, code)
        failed = self._successor.reaped(ended.others, ended.none_left)
        if failed is not None:
            say(f"the gateway that was to take our place ended with {ended_how(failed)}; we go on")

    def _died(self, child: Child, code: int) -> None:
        pid, now = child.pid, self._clock()
        self._reloader.died(child.index)
        self._children.bury(child, now)
        try:
            self._service.on_death(child.index)
        except Exception as error:  # noqa: BLE001 - bookkeeping must not end the service
            say(f"the counters of {child.name} are lost: {error!r}")
        said = f"{child.name} (pid {pid}) ended with {ended_how(code)}"
        if self._stopping:
            if code != 0:
                say(said)
            if not self._children.living_workers:  # whom the core waits for
                self._kill_at = min(self._kill_at, now + KILL_MARGIN_S)
            return
        unusable = code == EXIT_CONFIG and not child.ready and child.vital
        if not self._announced and (unusable or self._predecessor is not None):
            self._exit_code = EXIT_CONFIG if unusable else EXIT_FAILED
            self._stop(f"{child.name} could not start")
            return
        say(
            f"{said} after {now - child.started_at:.1f} s; its successor starts in "
            f"{child.respawn.delay_s:g} s"
        )


def _noted(number: int, frame: object) -> None:
    """The byte in the pipe is all that is needed; the default action must not happen."""


def _nothing() -> None:
    """A signal was noted, or a handler before closed what was to be heard."""
