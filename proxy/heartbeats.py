"""What a client hears of the gateway's own while its replica is silent. Pure."""

from __future__ import annotations

from typing import Protocol

from core.exchange import Header

COMMENT = b": headrace\n\n"
"""An event without data, which clients leave out (WHATWG HTML, 9.2.6)."""
HEAD: tuple[Header, ...] = ((b"content-type", b"text/event-stream; charset=utf-8"),)
"""Of an answer that the replica has not begun."""


class Heartbeats(Protocol):
    """A comment before a stream has been silent for `interval_s`: after the replica's head was
    passed on, or with `before_head` from the request on."""

    @property
    def interval_s(self) -> float: ...

    @property
    def before_head(self) -> bool: ...
