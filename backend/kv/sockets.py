"""A ZeroMQ socket on the event loop: each message is one plain call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import zmq

_PASS_S = 0.002
"""So long one pass of the loop is spent on messages; then others have their turn."""

Context = zmq.Context[zmq.Socket[bytes]]


class Wired:
    """Owns `socket` until `close`. `on_message` gets the frames of each message."""

    def __init__(
        self, socket: zmq.Socket[bytes], on_message: Callable[[list[bytes]], None]
    ) -> None:
        self._socket = socket
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._fd: int = socket.FD
        self.closed = False
        self._loop.add_reader(self._fd, self._readable)
        self._look_again()

    def __repr__(self) -> str:
        return f"<Wired {self._fd} closed={self.closed}>"

    def send(self, frames: Sequence[bytes]) -> None:
        """Raises zmq.Again when there is no room."""
        self._socket.send_multipart(frames, zmq.NOBLOCK)
        self._look_again()

    def close(self) -> None:
        """Nothing is called any more."""
        if not self.closed:
            self.closed = True
            self._loop.remove_reader(self._fd)
            self._socket.close(linger=0)

    def _look_again(self) -> None:
        # The descriptor tells only of changes, and any other call may have taken one.
        self._loop.call_soon(self._readable)

    def _readable(self) -> None:
        until = time.monotonic() + _PASS_S
        while not self.closed:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._on_message(frames)
            if time.monotonic() > until:
                self._look_again()
                return
