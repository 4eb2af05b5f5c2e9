"""Lines to a descriptor that may be full, slow or gone, without ever waiting for it.

Whole lines go out in writes of at most PIPE_BUF bytes, which a pipe takes whole or not at all: so
the lines of several workers on one pipe never tear. What cannot be written stays in a bounded
buffer; what does not fit there is dropped and counted. An inherited descriptor keeps its flags
(O_NONBLOCK belongs to everyone who shares it, the user's shell included): a pipe, terminal or file
is opened anew through /proc, a socket is written with MSG_DONTWAIT.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import stat
from collections import deque
from collections.abc import Callable

from core.errors import ConfigError

BUFFER_BYTES = 256 * 1024
LINE_BYTES = select.PIPE_BUF
"""The longest line, its newline included."""

_FILE_WRITE_BYTES = 64 * 1024
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_STANDARD = {"stdout": 1, "stderr": 2}


class LineSink:
    """Buffers lines and writes as many as the descriptor takes.

    `target` is `stdout`, `stderr` or a path; ConfigError if that cannot be opened. `dropped` is
    called with the number of lines lost, each time that some are.
    """

    def __init__(self, target: str, dropped: Callable[[int], None]) -> None:
        self.target = target
        self._dropped = dropped
        self._lines: deque[bytes] = deque()
        self._buffered = 0
        self._rest = b""
        self._mid_line = False
        try:
            self._fd, self._socket = _open(target)
        except OSError as error:
            raise ConfigError(f"cannot write log lines to {target}: {error.strerror}") from error
        regular = self._socket is None and stat.S_ISREG(os.fstat(self._fd).st_mode)
        self._write_bytes = _FILE_WRITE_BYTES if regular else LINE_BYTES
        self._may_move = regular and target not in _STANDARD

    def __repr__(self) -> str:
        return f"<LineSink {self.target}, {self._buffered} bytes wait>"

    @property
    def waiting_bytes(self) -> int:
        """How much is buffered."""
        return self._buffered

    def put(self, line: bytes) -> None:
        """Buffer one line, which ends in a newline; dropped if there is no room for it."""
        size = len(line)
        if self._buffered + size > BUFFER_BYTES or size > LINE_BYTES or self._closed:
            self._dropped(1)
            return
        self._lines.append(line)
        self._buffered += size

    def flush(self) -> None:
        """Write what the descriptor takes now. A fault of the target drops lines, never raises.
        A file that was moved away or removed is begun anew, whole lines in either."""
        if self._may_move and self._buffered and not self._rest and not self._closed:
            self._follow()
        try:
            while self._buffered:
                chunk = self._rest = self._rest or self._next_chunk()
                sent = self._write(chunk)
                self._rest = chunk[sent:]
                self._mid_line = not chunk.endswith(b"\n", 0, sent)
                self._buffered -= sent
        except BlockingIOError:
            return
        except OSError:  # disk full, reader gone: later lines may fare better
            self._drop(keep_started=True)

    def close(self) -> None:
        """Flush once more, drop the rest, let go of the descriptor. May be called twice."""
        if self._closed:
            return
        self.flush()
        self._drop(keep_started=False)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        else:
            os.close(self._fd)
            self._fd = -1

    @property
    def _closed(self) -> bool:
        return self._socket is None and self._fd < 0

    def _follow(self) -> None:
        with contextlib.suppress(OSError):  # then the old one must do
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(self.target), os.fstat(self._fd)):
                    return
            newer, _ = _open(self.target)
            os.close(self._fd)
            self._fd = newer

    def _next_chunk(self) -> bytes:
        """As many whole lines as one write may carry."""
        lines = self._lines
        chunk = [lines.popleft()]
        size = len(chunk[0])
        while lines and size + len(lines[0]) <= self._write_bytes:
            size += len(lines[0])
            chunk.append(lines.popleft())
        return b"".join(chunk)

    def _write(self, data: bytes) -> int:
        if self._socket is not None:
            return self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        return os.write(self._fd, data)

    def _drop(self, *, keep_started: bool) -> None:
        """Give up what waits, except for the rest of a line whose beginning is already out."""
        waiting = self._rest.count(b"\n") + len(self._lines)
        self._lines.clear()
        if keep_started and self._mid_line:
            self._rest = self._rest[: self._rest.index(b"\n") + 1]
            waiting -= 1
        else:
            self._rest = b""
        self._buffered = len(self._rest)
        if waiting:
            self._dropped(waiting)


def append_standard_streams() -> None:
    """Let everybody append to our stdout and stderr where these are files (`2> gateway.log`).

    Who writes to an inherited descriptor does so at its own offset, over what a sink has appended.
    """
    for fd in _STANDARD.values():
        with contextlib.suppress(OSError):
            if stat.S_ISREG(os.fstat(fd).st_mode):
                flags = fcntl.fcntl(fd, fcntl.F_GETFL)
                fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_APPEND)


def _open(target: str) -> tuple[int, socket.socket | None]:
    """A descriptor or a socket of our own that writes to `target`."""
    fd = _STANDARD.get(target)
    if fd is None:
        return os.open(target, _FLAGS | os.O_CREAT, 0o640), None
    if stat.S_ISSOCK(os.fstat(fd).st_mode):
        return -1, socket.socket(fileno=os.dup(fd))
    with contextlib.suppress(OSError):
        return os.open(f"/proc/self/fd/{fd}", _FLAGS), None
    own = os.dup(fd)  # no /proc, or the pipe is another user's: the shared flag must change
    os.set_blocking(own, False)
    return own, None
