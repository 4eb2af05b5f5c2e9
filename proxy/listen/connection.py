"""What the listener needs of a client connection, whatever protocol it speaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from core.exchange import Exchange

if TYPE_CHECKING:
    import asyncio


FRESH_S = 1.0
"""A connection that has been idle for less is not closed by a worker that ends: the client may have
sent a request meanwhile, which a close would leave without an answer."""


class ClientConnection(Protocol):
    """One client connection. `deadline_at` is on the event loop's clock."""

    deadline_at: float

    def on_deadline(self, now: float) -> None: ...

    @property
    def idle(self) -> bool:
        """Whether no request is being read or answered."""

    @property
    def fresh(self) -> bool:
        """Whether it has been idle for a moment only: a request may be on its way."""

    def shut_idle(self) -> None:
        """Close when idle. While the listener drains, otherwise after what was asked."""


class ClientExchange(Exchange, Protocol):
    """An exchange that knows the task that handles it, to cancel it when the client is gone."""

    task: asyncio.Task[None] | None
