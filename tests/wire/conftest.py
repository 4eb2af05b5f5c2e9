"""A process of its own for tests: reads what it says on stderr, and never outlives the test."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


class SpokenProcess:
    """A child process; `said` are the lines of its stderr so far."""

    def __init__(self, arguments: list[str]) -> None:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
        )
        assert self.process.stderr is not None
        self._stderr = self.process.stderr
        self._rest = b""
        self.said: list[str] = []

    def wait_for(self, pattern: str, timeout_s: float = 60.0) -> str:
        """The next line that matches."""
        give_up_at = time.monotonic() + timeout_s
        while True:
            while b"\n" in self._rest:
                line, _, self._rest = self._rest.partition(b"\n")
                self.said.append(line.decode())
                if re.search(pattern, self.said[-1]):
                    return self.said[-1]
            left_s = give_up_at - time.monotonic()
            if left_s <= 0 or not select.select([self._stderr], [], [], left_s)[0]:
                raise TimeoutError(f"no line {pattern!r} in {self.said}")
            more = os.read(self._stderr.fileno(), 65536)
            if not more:
                raise EOFError(f"no line {pattern!r} in {self.said}")
            self._rest += more

    def ports(self) -> list[int]:
        """Waits until it listens."""
        return [int(port) for port in re.findall(r":(\d+)", self.wait_for("listening on"))]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def ended(self, timeout_s: float = 60.0) -> int:
        """The exit status, once all processes that hold its stderr are gone."""
        try:
            self.wait_for("(?!)", timeout_s)
        except EOFError:
            return self.process.wait(timeout_s)
        raise AssertionError

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()  # its workers notice, and end
        self.process.wait(10)
        self._stderr.close()


@pytest.fixture
def run_process() -> Iterator[Callable[..., SpokenProcess]]:
    """`run_process("-m", "proxy.serve", ...)`: python with these arguments."""
    started: list[SpokenProcess] = []

    def run(*arguments: str) -> SpokenProcess:
        started.append(SpokenProcess(list(arguments)))
        return started[-1]

    yield run
    for process in started:
        process.close()


@pytest.fixture
def run_stub(run_process: Callable[..., SpokenProcess]) -> Callable[..., SpokenProcess]:
    """`run_stub(mode, workers, *tls, drain_s=5.0)`: see stub_gateway.py."""

    def run(mode: str, workers: int, *tls: str, drain_s: float = 5.0) -> SpokenProcess:
        script = str(Path(__file__).with_name("stub_gateway.py"))
        return run_process(script, mode, str(workers), str(drain_s), *tls)

    return run
