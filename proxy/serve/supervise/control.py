"""The control socket: how commands on the same host reach the running gateway.

A Unix socket in `run_dir` that our own user alone may open. What arrives there is put into words
(`Reload`, `TakeOver`, `Yield`) and left to the supervisor; nothing here waits.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from typing import Final

from core.errors import ConfigError
from proxy.serve.supervise.channel import Channel
from proxy.serve.supervise.messages import Message

MOST_VISITORS: Final = 16
_TOO_MANY: Final = (errno.EMFILE, errno.ENFILE)
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: struct ucred of unix(7)


class Visitor:
    """Somebody at the control socket, in process `pid`."""

    def __init__(self, channel: Channel, pid: int) -> None:
        self.channel = channel
        self.pid = pid

    def __repr__(self) -> str:
        return f"<Visitor pid={self.pid} {self.channel}>"


class ControlSocket:
    """The supervisor's side."""

    def __init__(self, path: str) -> None:
        """Take the place of whatever is at `path`, in one step. Raises ConfigError."""
        self.path = path
        self.visitors: list[Visitor] = []
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        passing = f"{path}.{os.getpid()}"
        try:
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(passing)
            mask = os.umask(0o177)
            try:
                self._sock.bind(passing)
            finally:
                os.umask(mask)
            self._sock.listen(MOST_VISITORS)
            self._sock.setblocking(False)
            self._file = _file_identity(passing)
            os.rename(passing, path)
            self._spare = _spare()
        except OSError as error:
            self._sock.close()
            raise ConfigError(
                f"$.run_dir: cannot make {path}: {error.strerror or error}; give a folder that "
                "this user may write"
            ) from error

    def __repr__(self) -> str:
        return f"<ControlSocket {self.path} visitors={len(self.visitors)}>"

    def fileno(self) -> int:
        return self._sock.fileno()

    def admit(self) -> None:
        """Let in who waits, if they run as our user or as root. Where no descriptor is left they
        are turned away: whoever waits on would make the socket readable for ever."""
        try:
            while True:
                sock, _ = self._sock.accept()
                pid, user = _peer(sock)
                if user not in (0, os.geteuid()) or len(self.visitors) >= MOST_VISITORS:
                    sock.close()
                else:
                    self.visitors.append(Visitor(Channel(sock), pid))
        except OSError as error:
            if error.errno in _TOO_MANY:
                self._turn_away()

    def _turn_away(self) -> None:
        """Accept with the descriptor that is kept for this, and close."""
        with contextlib.suppress(OSError):
            os.close(self._spare)
            try:
                while True:
                    self._sock.accept()[0].close()
            finally:
                self._spare = _spare()

    def hear(self, visitor: Visitor) -> list[Message]:
        """What the visitor says. One that leaves is forgotten after its last words."""
        messages = visitor.channel.receive()
        visitor.channel.flush()
        return messages

    def forget(self, visitor: Visitor) -> None:
        visitor.channel.close()
        if visitor in self.visitors:
            self.visitors.remove(visitor)

    def close(self, *, remove: bool) -> None:
        """End it. `remove`: also the file, unless it is a successor's by now. May be called
        twice."""
        self._sock.close()
        with contextlib.suppress(OSError):
            os.close(self._spare)
        self._spare = -1
        for visitor in self.visitors:
            visitor.channel.close()
        self.visitors = []
        if remove:
            with contextlib.suppress(OSError):
                if _file_identity(self.path) == self._file:
                    os.unlink(self.path)


class NobodyThere(Exception):
    """No gateway answers at a control socket. `str()` is a sentence."""


def visit(path: str, *, takes_descriptors: bool = False) -> Visitor:
    """Connect to the gateway whose control socket is `path`. Raises NobodyThere."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(5.0)
        sock.connect(path)
        pid, user = _peer(sock)
    except OSError as error:
        sock.close()
        raise NobodyThere(f"no gateway answers at {path} ({error.strerror or error})") from error
    if user not in (0, os.geteuid()):
        sock.close()
        raise NobodyThere(f"{path} belongs to another user ({user}), who is not trusted")
    return Visitor(Channel(sock, takes_descriptors=takes_descriptors), pid)


def _peer(sock: socket.socket) -> tuple[int, int]:
    """Process and user of the other side, as they were when it connected or listened."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(data)
    return pid, user


def _spare() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _file_identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_ino, status.st_mtime_ns
