"""The seam between a connection to a replica and whoever reads the response."""

from __future__ import annotations

from typing import Protocol

from core.errors import UpstreamError
from core.exchange import Header


class Hold(Protocol):
    """The exchange's handle on the socket."""

    def detach(self) -> None:
        """The exchange is over."""


class ResponseHandler(Protocol):
    """Who reads a response: `on_head` once, `on_body` any number of times, then exactly one of
    `on_end` and `on_failed` (which may also come first). Nothing is called after `abort`.
    `progress` grows with what the response tells, comments of a stream apart: a server whose engine
    is gone goes on to send those."""

    @property
    def progress(self) -> int: ...

    def on_head(self, status: int, headers: list[Header]) -> None:
        """The final response's status (200 to 599) and headers, names in lower case."""

    def on_body(self, data: bytes) -> None:
        """All body bytes of one read."""

    def on_end(self) -> None:
        """The response is complete."""

    def on_failed(self, error: UpstreamError) -> None:
        """It will never be complete."""
