"""One end of a stream socket that carries messages, and file descriptors with them. Never blocks,
except in `wait`."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections import deque

from proxy.serve.supervise.messages import Frames, Message, encode

_READ_BYTES = 65_536
_MOST_DESCRIPTORS = 64
"""In one read; each frame brings one at most."""


class Channel:
    """`ended` once the other side is gone. What it sent before can still be received."""

    def __init__(self, sock: socket.socket, *, takes_descriptors: bool = False) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._takes_descriptors = takes_descriptors
        self._frames = Frames()
        self._unsent: deque[tuple[bytes, int | None]] = deque()
        self.descriptors: deque[int] = deque()
        """Received and not yet taken, in the order of their frames."""
        self.ended = False

    def __repr__(self) -> str:
        return f"<Channel {self._sock.fileno()} unsent={len(self._unsent)} ended={self.ended}>"

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(one), cls(other)

    @property
    def waits_to_send(self) -> bool:
        return bool(self._unsent) and not self.ended

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, message: Message, descriptor: int | None = None) -> None:
        """Send as soon as there is room; the descriptor must stay open until then. To a side that
        is gone: nothing happens."""
        self._unsent.append((encode(message), descriptor))
        self.flush()

    def flush(self) -> None:
        """Send what there is room for."""
        try:
            while self._unsent and not self.ended:
                data, descriptor = self._unsent.popleft()
                try:
                    sent = self._send(data, descriptor)
                except BlockingIOError:
                    self._unsent.appendleft((data, descriptor))
                    return
                if sent < len(data):
                    self._unsent.appendleft((data[sent:], None))
        except OSError:
            self.ended = True

    def _send(self, data: bytes, descriptor: int | None) -> int:
        if descriptor is None:
            return self._sock.send(data)
        return socket.send_fds(self._sock, [data], [descriptor])

    def receive(self) -> list[Message]:
        """What has arrived. Nonsense ends the channel."""
        messages: list[Message] = []
        try:
            while not self.ended:
                data = self._receive()
                self.ended = not data
                messages += self._frames.feed(data)
        except BlockingIOError:
            pass
        except (OSError, ValueError):
            self.ended = True
        return messages

    def _receive(self) -> bytes:
        if not self._takes_descriptors:
            return self._sock.recv(_READ_BYTES)
        data, descriptors, _, _ = socket.recv_fds(self._sock, _READ_BYTES, _MOST_DESCRIPTORS)
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)  # recv_fds takes flags, and ignores them
            self.descriptors.append(descriptor)
        return data

    def wait(self, timeout_s: float) -> list[Message]:
        """Block until something arrives; nothing: the time is up, or the other side is gone."""
        give_up_at = time.monotonic() + timeout_s
        while not (messages := self.receive()) and not self.ended:
            left_s = give_up_at - time.monotonic()
            if left_s <= 0:
                break
            poll = select.poll()
            poll.register(self, select.POLLIN | (select.POLLOUT if self._unsent else 0))
            poll.poll(left_s * 1000)
            self.flush()
        return messages

    def close(self) -> None:
        """May be called twice."""
        self.ended = True
        for descriptor in self.descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self.descriptors.clear()
        self._sock.close()
