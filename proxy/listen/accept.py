"""Accepts connections on sockets that all workers share: one at a time, and not always.

A worker leaves a connection to another one that has less to do (`balance.py`). It stops accepting
while there is no room: no file descriptors, too many handshakes, overload. What waits meanwhile
waits in the kernel's queue, from which any worker takes it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any

from core.clock import Clock
from core.load_board import LoadCell
from core.metrics import Metrics
from proxy.listen.balance import STEP_BACK_S, Balance

RETRY_S = 0.1
"""How long accepting rests when the system has no descriptor or memory for a connection."""
_WELL_AFTER_S = 5.0
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_NOT_LISTENING = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSOCK, errno.EOPNOTSUPP})

_log = logging.getLogger("headrace.accept")

Deliver = Callable[[socket.socket, Any, ssl.SSLContext | None], None]
"""Takes over an accepted, non-blocking socket: with its peer's address and TLS, if any."""


class Acceptor:
    """The listening sockets of one worker."""

    def __init__(
        self,
        deliver: Deliver,
        *,
        load: LoadCell,
        balance: Balance,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._deliver = deliver
        self._load = load
        self._balance = balance
        self._now = clock
        self._listening: dict[socket.socket, ssl.SSLContext | None] = {}
        self._pauses: set[str] = set()
        self._failing = False
        self._failed_at = 0.0
        self._steps_back = metrics.counter(
            "headrace_accept_steps_back_total",
            "Times that a connection was left to a worker with less to do",
        ).labels()
        self._paused = metrics.counter(
            "headrace_accept_pauses_total", "Times that accepting was paused", ("reason",)
        )

    def __repr__(self) -> str:
        return f"<Acceptor {len(self._listening)} sockets, paused by {sorted(self._pauses)}>"

    def listen(self, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        """Accept on a listening, non-blocking socket, which is ours to close from now on."""
        self._listening[sock] = context
        self._update()

    def pause(self, reason: str) -> None:
        """Accept nothing until `resume` was called with every reason."""
        if reason not in self._pauses:
            self._paused.labels(reason).inc()
            self._pauses.add(reason)
            self._update()

    def resume(self, reason: str) -> None:
        if reason in self._pauses:
            self._pauses.discard(reason)
            self._update()

    def close(self) -> None:
        """Close this process's listening sockets; connections in their queues stay there for
        whoever else has the sockets."""
        self._pauses.add("closed")
        self._update()
        while self._listening:
            self._listening.popitem()[0].close()

    def _update(self) -> None:
        accepting = bool(self._listening) and not self._pauses
        self._load.set_accepting(accepting)
        for sock in self._listening:
            if accepting:
                self._watch(sock)
            else:
                self._loop.remove_reader(sock)

    def _watch(self, sock: socket.socket) -> None:
        if sock in self._listening and not self._pauses:
            self._loop.add_reader(sock, self._on_connection, sock)

    def _on_connection(self, sock: socket.socket) -> None:
        """Called again at once while more connections wait; in between the loop serves others."""
        if self._balance.steps_back(self._now()):
            self._steps_back.inc()
            self._loop.remove_reader(sock)
            self._loop.call_later(STEP_BACK_S, self._watch, sock)
            return
        try:
            accepted, address = sock.accept()
        except BlockingIOError:
            return  # another worker was quicker
        except OSError as error:
            self._failed(sock, error)
            return
        if self._failing and self._now() - self._failed_at > _WELL_AFTER_S:
            self._failing = False
            _log.info("connections are accepted again")
        accepted.setblocking(False)
        self._deliver(accepted, address, self._listening[sock])

    def _failed(self, sock: socket.socket, error: OSError) -> None:
        """Say once what is wrong, however often it is: a log that is full helps nobody."""
        if error.errno in _NOT_LISTENING:
            _log.error("cannot accept connections any more: %s", error)
            self._loop.remove_reader(sock)
            del self._listening[sock]
            self._update()
        elif error.errno in _NO_ROOM:
            self._failed_at = self._now()
            if not self._failing:
                self._failing = True
                _log.warning(
                    "cannot accept connections now: %s; they wait until others are closed",
                    os.strerror(error.errno or 0),
                )
            self.pause("descriptors")
            self._loop.call_later(RETRY_S, self.resume, "descriptors")
        # All else is about that one connection, which is gone (accept(2), "Error handling").
