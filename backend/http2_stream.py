"""One exchange's hold on an HTTP/2 connection to a replica: one stream of it. Pure.

It offers what `http1_client.Connection` offers, so whoever reads a response knows no difference.
It dies with the response: a late `abort` hits nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from backend.response import ResponseHandler
from core.errors import UpstreamReset
from core.exchange import Header


class StreamConnection(Protocol):
    """The connection, as a stream sees it."""

    @property
    def served(self) -> int: ...

    def begin(
        self,
        stream: Http2Stream,
        method: bytes,
        path: bytes,
        headers: Sequence[Header],
        body: bytes,
    ) -> None:
        """Send the request."""

    def cancel(self, stream: Http2Stream, held: int) -> None:
        """The exchange is given up; `held` bytes of its body were not consumed yet."""

    def consumed(self, stream_id: int, size: int) -> None: ...


class Http2Stream:
    """A place on a connection: `send` once; `abort` at any time, any number of times.

    `id` is 0 before `send`. `reused`: the connection served a request before, so the replica may
    be about to close it. `reads` counts what arrived of the response. `held` are bytes of it that
    the replica does not know to be consumed. While `paused` these are all that arrive: it may send
    no more than the stream's window. So a slow client holds up its own stream alone.
    """

    __slots__ = ("_connection", "handler", "held", "id", "paused", "reads", "replica_id", "reused")

    def __init__(self, connection: StreamConnection, replica_id: str) -> None:
        self._connection: StreamConnection | None = connection
        self.handler: ResponseHandler | None = None
        self.replica_id = replica_id
        self.reused = connection.served > 0
        self.paused = False
        self.held = 0
        self.id = 0
        self.reads = 0

    def __repr__(self) -> str:
        state = "over" if self._connection is None else f"stream {self.id}"
        return f"<Http2Stream to {self.replica_id}: {state}, {self.reads} reads>"

    @property
    def progress(self) -> int:
        """See `ResponseHandler`."""
        return 0 if self.handler is None else self.handler.progress

    def send(
        self,
        method: bytes,
        path: bytes,
        headers: Sequence[Header],
        body: bytes,
        handler: ResponseHandler,
    ) -> None:
        """Begin the stream with one request; the handler hears of everything from then on.

        What is given must be valid already, names in lower case; the connection adds the rest.
        Raises RuntimeError when it was used or aborted before.
        """
        if self._connection is None or self.handler is not None:
            raise RuntimeError("this stream was aborted or has its request already")
        self.handler = handler
        self._connection.begin(self, method, path, headers, body)

    def abort(self) -> None:
        """Reset the stream at once, and no other one of the connection; the handler hears nothing
        more. Nothing happens after the end."""
        connection = self._connection
        if connection is not None:
            held = self.held
            self.detach()
            connection.cancel(self, held)

    def pause_reading(self) -> None:
        """Idempotent, and without effect after the end."""
        self.paused = self._connection is not None

    def resume_reading(self) -> None:
        """Idempotent, and without effect after the end."""
        self.paused = False
        if self.held and self._connection is not None:
            held, self.held = self.held, 0
            self._connection.consumed(self.id, held)

    def divert(self, take: Callable[[bytes], None]) -> None:
        """None: what the replica's bytes are framed in is of no use to a client."""

    def detach(self) -> ResponseHandler | None:
        """The exchange is over (called by the connection). Returns who is to be told."""
        handler, self.handler = self.handler, None
        self._connection = None
        self.paused = False
        self.held = 0
        return handler

    def lost(self, what: str) -> UpstreamReset:
        """The error for a connection that ended under it."""
        return UpstreamReset(what, reused=self.reused, answered=self.reads > 0)
