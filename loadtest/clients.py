"""The clients of one run: in this process, or several that share the load. Performs.

Each of several does every nth session of the same schedule, begins at the same instant and keeps
raw samples, so that what is put together is as exact as what one would have measured. An interrupt
ends all of them, and what was found until then is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import connection
from multiprocessing.connection import Connection

import uvloop

from loadtest.record import Samples
from loadtest.runner import Runner

LEAD_S = 0.1  # from now until a run begins
_LEAD_EACH_S = 0.5  # and more for each process: it draws the schedule first
_SHOWN_S = 0.5
_SWITCH_S = 0.0002

Make = Callable[[int, int], Runner]
"""Of the number of a client and how many there are."""
Show = Callable[[int, int], None]
"""How many requests have begun, how many run."""


class ClientDied(Exception):
    """One sentence: a client process ended and left nothing."""


def run(make: Make, processes: int, began: Callable[[float], None], show: Show | None) -> Samples:
    """Until all has ended or the run is interrupted; `began` is told the instant it begins at.
    ClientDied."""
    gc.collect()
    gc.freeze()
    gc.disable()  # a collection of garbage would be a lag of the client's own
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)  # nor may the thread that watches the server be one
    try:
        with _many_connections():
            if processes > 1:
                return _several(make, processes, began, show)
            runner = make(0, 1)
            began_at = time.perf_counter() + LEAD_S
            began(began_at)
            return uvloop.run(_until_interrupted(runner, began_at, show))
    finally:
        sys.setswitchinterval(interval_s)
        gc.enable()
        gc.unfreeze()


@contextlib.contextmanager
def _many_connections() -> Iterator[None]:
    """An open loop has as many as a slow server makes it: up to the hard limit of files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # then the soft limit stays
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def _until_interrupted(runner: Runner, began_at: float, show: Show | None) -> Samples:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, runner.stop)
    handle: list[asyncio.TimerHandle] = []

    def say() -> None:
        assert show is not None
        show(len(runner.samples.records), runner.live)
        handle[:] = [loop.call_later(_SHOWN_S, say)]

    if show is not None:
        say()
    samples = await runner.run(began_at)
    for each in handle:
        each.cancel()
    return samples


def _several(
    make: Make, processes: int, began: Callable[[float], None], show: Show | None
) -> Samples:
    began_at = time.perf_counter() + LEAD_S + _LEAD_EACH_S * processes
    context = multiprocessing.get_context("fork")  # TLS contexts and keys go along
    ends: dict[Connection, int] = {}
    children = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    for number in range(processes):
        here, there = context.Pipe(duplex=False)
        child = context.Process(
            target=_child, args=(make, (number, processes), began_at, there, show is not None)
        )
        child.start()
        there.close()
        ends[here] = number
        children.append(child)

    def stop(number: int, frame: object) -> None:
        for child in children:
            if child.is_alive():
                child.terminate()

    handlers = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        began(began_at)
        return merged(_collected(ends, show))
    finally:
        stop(0, None)
        for child in children:
            child.join()
        for each, handler in handlers.items():
            signal.signal(each, handler)


def _collected(ends: dict[Connection, int], show: Show | None) -> list[Samples]:
    """What each has measured. ClientDied."""
    found: list[Samples] = []
    states = dict.fromkeys(ends.values(), (0, 0))
    while ends:
        for end in connection.wait(list(ends)):
            assert isinstance(end, Connection)
            try:
                said = end.recv()
            except EOFError:
                raise ClientDied(f"client {ends[end]} died") from None
            if isinstance(said, Samples):
                found.append(said)
                del ends[end]
                end.close()
            elif show is not None:
                states[ends[end]] = said
                show(sum(begun for begun, _ in states.values()), sum(n for _, n in states.values()))
    return found


def _child(
    make: Make, place: tuple[int, int], began_at: float, end: Connection, shown: bool
) -> None:
    runner = make(*place)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    show: Show | None = (lambda begun, live: end.send((begun, live))) if shown else None
    end.send(uvloop.run(_until_interrupted(runner, began_at, show)))
    end.close()
    sys.stdout.flush()
    os._exit(0)  # what the parent would do at its exit is the parent's


def merged(parts: list[Samples]) -> Samples:
    """As one client would have measured it. Of the clients' own load the busiest counts."""
    whole = parts[0]
    for part in parts[1:]:
        whole.planned += part.planned
        whole.records += part.records
        whole.openings += part.openings
        whole.gaps.extend(part.gaps)
        whole.gap_due_at.extend(part.gap_due_at)
        whole.reconnects += part.reconnects
        whole.ended_at = max(whole.ended_at, part.ended_at)
        whole.interrupted = whole.interrupted or part.interrupted
        if part.cpu_s + part.starved_s > whole.cpu_s + whole.starved_s:
            whole.cpu_s, whole.starved_s = part.cpu_s, part.starved_s
    whole.planned.sort()
    whole.records.sort(key=lambda record: record.due_at)
    return whole
