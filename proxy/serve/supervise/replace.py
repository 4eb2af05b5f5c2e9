"""A new gateway takes the place of a running one, and no connection is lost between them.

The new one asks at the control socket and is given the listening sockets. They are shared then,
by both. Once its workers are ready it says which it keeps, and the old one ends as on SIGTERM,
without waiting for the news to spread: whoever connects meets the new one. If the new one fails
before, the old one has lost nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

from proxy.listen.address import parse_address
from proxy.listen.sockets import BoundSocket, Sockets
from proxy.serve.supervise.control import Visitor
from proxy.serve.supervise.messages import (
    HandedOver,
    Listening,
    Rejected,
    TakeOver,
    Yield,
)

ANSWER_S = 60.0
"""The old gateway answers at once, unless it is loading tokenizers for a reload."""


class CannotReplace(Exception):
    """The running gateway does not give way. `str()` is a sentence."""


def give(
    visitor: Visitor, sockets: Sockets, secret: bytes, found: Mapping[str, tuple[str, ...]]
) -> None:
    """The old one's side: hand out all listening sockets."""
    for bound in sockets.all():
        visitor.channel.send(Listening(str(bound.address), bound.file), bound.socket.fileno())
    visitor.channel.send(HandedOver(secret, dict(found)))


class Predecessor:
    """The new one's side: the gateway whose place it takes, in process `pid`.

    `sockets` are its listening sockets, `secret` is what it derives its secrets from, `found` what
    DNS told it.
    """

    def __init__(self, visitor: Visitor) -> None:
        """Ask for its sockets. Raises CannotReplace."""
        self.pid = visitor.pid
        self.sockets: list[BoundSocket] = []
        self.secret = b""
        self.found: dict[str, tuple[str, ...]] = {}
        self._channel = visitor.channel
        self._channel.send(TakeOver())
        try:
            self._receive()
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<Predecessor pid={self.pid} sockets={len(self.sockets)}>"

    def _receive(self) -> None:
        while messages := self._channel.wait(ANSWER_S):
            for message in messages:
                if isinstance(message, Listening):
                    self.sockets.append(_bound(message, self._channel.descriptors.popleft()))
                elif isinstance(message, HandedOver):
                    self.secret, self.found = message.secret, message.found
                    return
                elif isinstance(message, Rejected):
                    raise CannotReplace(message.reason)
        raise CannotReplace(f"the running gateway (pid {self.pid}) did not hand its sockets over")

    def end(self, kept: Sequence[str]) -> None:
        """Have it drain. Its sockets for other addresses than `kept` are closed then. If it died
        meanwhile, all the better."""
        self._channel.send(Yield(tuple(kept)))
        self._channel.close()

    def hang_up(self) -> None:
        """Close the line to it: it goes on, unless it was told to end."""
        self._channel.close()

    def close(self) -> None:
        """Leave it as it is, and what it handed out to it."""
        self.hang_up()
        for bound in self.sockets:
            bound.socket.close()


def _bound(message: Listening, descriptor: int) -> BoundSocket:
    sock = socket.socket(fileno=descriptor)
    sock.setblocking(False)
    return BoundSocket(parse_address(message.address), sock, message.file)
