"""Starts processes, reads their CPU clocks, and ends them: by pid, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any


class BenchError(Exception):
    """The benchmark cannot go on; the text says why."""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def accepts(address: int | str) -> bool:
    """Whether somebody listens on the port or Unix socket path."""
    if isinstance(address, int):
        family, place = socket.AF_INET, ("127.0.0.1", address)
    else:
        family, place = socket.AF_UNIX, address  # type: ignore[assignment]
    with socket.socket(family) as sock:
        return sock.connect_ex(place) == 0


def cpu_ns(pid: int) -> int:
    """CPU time of all threads of a process, in ns (its CPU clock, see clock_getcpuclockid(3))."""
    return time.clock_gettime_ns(~pid << 3 | 2)


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for parent in found:
        found += children.get(parent, ())
    return found


class Processes:
    """The processes of one run, as a context manager that ends them in reverse order."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cores = sorted(os.sched_getaffinity(0))
        self._started: list[tuple[str, subprocess.Popen[str]]] = []

    def __repr__(self) -> str:
        return f"<Processes {', '.join(name for name, _ in self._started)}>"

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for _, process in reversed(self._started):
            if process.poll() is None:
                everyone = family(process.pid)
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(3)
                except subprocess.TimeoutExpired:
                    for pid in everyone:
                        _kill(pid)
                    process.wait()

    def _on_core(self, measured: bool) -> contextlib.AbstractContextManager[None]:
        first, *others = self._cores
        return _pinned([first] if measured or not others else others)

    @property
    def latest(self) -> subprocess.Popen[str]:
        """The one that was started last."""
        return self._started[-1][1]

    def last_words(self) -> str:
        """The end of what each process logged, for the case that something went wrong."""
        texts = ((name, (self._folder / f"{name}.log").read_text()) for name, _ in self._started)
        return "\n".join(f"--- {name}:\n{text[-2000:]}" for name, text in texts if text)

    def start(
        self,
        name: str,
        command: Sequence[str],
        ready: Callable[[], bool] | None = None,
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: IO[str] | int | None = None,
        measured: bool = False,
    ) -> subprocess.Popen[str]:
        """Start `command` and wait until it is `ready`; BenchError with its last words if not.

        What is `measured` has the first core to itself, all else shares the others: a proxy whose
        caches are emptied by its own clients at every turn is charged for what they do.
        """
        log = self._folder / f"{name}.log"
        with log.open("a") as errors, self._on_core(measured):
            process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=errors if stdout is None else stdout,
                stderr=errors,
                text=True,
            )
        self._started.append((name, process))
        deadline = time.monotonic() + 60
        while ready is not None and not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchError(f"{name} did not start (exit {process.poll()})")
            time.sleep(0.02)
        return process


@contextlib.contextmanager
def _pinned(cores: Iterable[int]) -> Iterator[None]:
    """What is started meanwhile runs on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class ClientProcess:
    """The load client, spoken to in lines of JSON."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __repr__(self) -> str:
        return f"<ClientProcess {self._process.pid}>"

    def __call__(self, op: str, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise BenchError(f"the load client died at {op}")
        document: dict[str, Any] = json.loads(answer)
        return document


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def benchmark(name: str = "bench") -> Iterator[tuple[Processes, Path]]:
    """The processes of a benchmark and its folder. Where it cannot go on, that is said, and the
    exit status is 1."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    with tempfile.TemporaryDirectory(prefix=f"{name}-") as path:
        folder = Path(path)
        with Processes(folder) as processes:
            try:
                yield processes, folder
            except BenchError as error:
                sys.exit(f"{name}: {error}\n{processes.last_words()}")


def open_as_many_as_may_be() -> None:
    """Raises the bound on file descriptors."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def obey(clients: object) -> None:
    """Until the end of stdin: each line is JSON and names the method of `clients` (`op`) and its
    arguments; the answer is a line on stdout."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        method = getattr(clients, command.pop("op"))
        print(json.dumps(await method(**command)), flush=True)
