"""What the listener needs of a client connection, whatever protocol it speaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from core.exchange import Exchange

if TYPE_CHECKING:
    import asyncio


class ClientConnection(Protocol):
    """One client connection. `deadline_at` is on the event loop's clock."""

    deadline_at: float

    def on_deadline(self, now: float) -> None: ...

    @property
    def idle(self) -> bool:
        """Whether no request is being read or answered."""

    def shut_idle(self) -> None:
        """Close when idle, or else after the answers to what has been asked."""


class ClientExchange(Exchange, Protocol):
    """An exchange that knows the task that handles it, to cancel it when the client is gone."""

    task: asyncio.Task[None] | None
