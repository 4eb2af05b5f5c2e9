"""What visitors of the control socket ask for, and who may have it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from core.clock import Clock
from proxy.serve.supervise.control import ControlSocket, Visitor
from proxy.serve.supervise.messages import DrainReplica, Rejected, Reload, TakeOver, Yield
from proxy.serve.supervise.reloader import Answer

Want = Callable[[str, Answer], None]
Drain = Callable[[str, bool], str]
Give = Callable[[Visitor], None]
GiveWay = Callable[[int, Sequence[str]], None]

TAKE_OVER_S = 120.0
"""A visitor that was given the sockets and says nothing for so long keeps no other from them: a
gateway that is not ready after a minute gives up."""


class Desk:
    """`want(why, answer)` asks for a reload of the configuration `path`, in which `drain(id, on)`
    has marked a replica (it returns why it cannot), `give(visitor)` hands the
    sockets out, `give_way(pid, kept)` leaves them to the visitor. `clock`: monotonic seconds."""

    def __init__(
        self,
        control: ControlSocket,
        path: str,
        *,
        want: Want,
        drain: Drain,
        give: Give,
        give_way: GiveWay,
        clock: Clock,
    ) -> None:
        self.control = control
        self._path = path
        self._want = want
        self._drain = drain
        self._give = give
        self._give_way = give_way
        self._clock = clock
        self._taker: Visitor | None = None
        self._taken_at = 0.0

    def __repr__(self) -> str:
        return f"<Desk {self.control} taker={self._taker}>"

    def attend(self, visitor: Visitor) -> None:
        """Hear what the visitor says, and see to it."""
        for message in self.control.hear(visitor):
            if isinstance(message, Reload):
                self._reload(visitor, message.path)
            elif isinstance(message, DrainReplica):
                self._drain_replica(visitor, message)
            elif isinstance(message, TakeOver):
                self._take_over(visitor)
            elif isinstance(message, Yield) and visitor is self._taker:
                self._give_way(visitor.pid, message.kept)
        if visitor.channel.ended:
            self.control.forget(visitor)
            if visitor is self._taker:
                self._taker = None

    def _drain_replica(self, visitor: Visitor, asked: DrainReplica) -> None:
        if not _is_same(asked.path, self._path):
            self._reload(visitor, asked.path)  # which says so
            return
        if fault := self._drain(asked.replica, asked.drain):
            visitor.channel.send(Rejected(fault))
            return
        command = "drain" if asked.drain else "undrain"
        self._reload(visitor, asked.path, f"headrace {command} {asked.replica}")

    def _reload(self, visitor: Visitor, path: str, why: str = "headrace reload") -> None:
        if _is_same(path, self._path):
            self._want(why, visitor.channel.send)
        else:
            visitor.channel.send(
                Rejected(f"the gateway there (pid {os.getpid()}) runs {self._path}")
            )

    def _take_over(self, visitor: Visitor) -> None:
        taker, now = self._taker, self._clock()
        if taker is not None and taker is not visitor:
            if now < self._taken_at + TAKE_OVER_S:
                visitor.channel.send(Rejected(f"pid {taker.pid} is just taking its place"))
                return
            self.control.forget(taker)
        self._taker, self._taken_at = visitor, now
        self._give(visitor)

    def close(self) -> None:
        self.control.close(remove=True)


def _is_same(path: str, ours: str) -> bool:
    try:
        return os.path.realpath(path) == os.path.realpath(ours)
    except ValueError:  # no path at all: it has a NUL in it
        return False
