"""One exchange's hold on a connection to a replica: what `Pool.connect` gives.

It dies with the response, so that a late `abort` can never hit the next exchange on the socket.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backend.http1_protocol import Http1Protocol
from backend.response import ResponseHandler
from core.exchange import Header

__all__ = ["Connection", "ResponseHandler"]


class Connection:
    """One exchange's hold on a connection: `send` once; `abort` at any time, any number of times.

    `reused`: it served a request before, so the replica may have closed it meanwhile.
    """

    __slots__ = ("_protocol", "replica_id", "reused")

    def __init__(self, protocol: Http1Protocol, replica_id: str) -> None:
        self._protocol: Http1Protocol | None = protocol
        self.replica_id = replica_id
        self.reused = protocol.served > 0
        protocol.hold = self

    def __repr__(self) -> str:
        return f"<Connection to {self.replica_id}: {self._protocol or 'over'}>"

    def send(
        self,
        method: bytes,
        path: bytes,
        headers: Sequence[Header],
        body: bytes,
        handler: ResponseHandler,
    ) -> None:
        """Write one request; the handler hears of everything from then on.

        Host, Content-Length, Accept-Encoding and the replica's Authorization are added; what is
        given must be valid already. Raises RuntimeError when it was used or aborted before.
        """
        if self._protocol is None:
            raise RuntimeError("this connection was aborted or has served its request")
        self._protocol.send(method, path, headers, body, handler)

    def abort(self) -> None:
        """Close it at once; the handler hears nothing more. Nothing happens after the end."""
        protocol = self._protocol
        if protocol is not None:
            protocol.abort()

    def pause_reading(self) -> None:
        """Idempotent, and without effect after the end."""
        if self._protocol is not None:
            self._protocol.pause_reading()

    def resume_reading(self) -> None:
        """Idempotent, and without effect after the end."""
        if self._protocol is not None:
            self._protocol.resume_reading()

    def divert(self, take: Callable[[bytes], None]) -> Callable[[bytes], None] | None:
        """All further reads of the response go to `take`, as they come. Returns where those must
        go that begin or end within a chunk, or are the last; None after the end."""
        return None if self._protocol is None else self._protocol.divert(take)

    def detach(self) -> None:
        """The exchange is over (called by the protocol)."""
        self._protocol = None
