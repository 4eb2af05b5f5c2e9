"""What delivering needs of the routing and of the backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from core.claim import Claim
from core.errors import UpstreamError
from core.exchange import Header
from core.prompt import Prompt
from proxy.prefills import Leg
from proxy.relay import Relay, Upstream


class Lease(Leg, Protocol):
    """A replica held for one exchange."""

    def explain(self) -> str:
        """Why it is this replica, in one line."""


class Router(Protocol):
    """`queues` are not empty while requests wait for a replica."""

    @property
    def queues(self) -> Mapping[str, object]: ...

    async def lease(
        self,
        *,
        model: str,
        prompt: Prompt,
        max_output_tokens: int | None,
        exclude: Sequence[str] = (),
        claim: Claim,
        enter: Callable[[str, float], None],
    ) -> Lease: ...

    def pick(
        self,
        *,
        model: str,
        prompt: Prompt,
        max_output_tokens: int | None,
        exclude: Sequence[str] = (),
    ) -> Lease:
        """As `lease`, without ever waiting."""


class UpstreamConnection(Upstream, Protocol):
    @property
    def reused(self) -> bool: ...

    def send(
        self, method: bytes, path: bytes, headers: Sequence[Header], body: bytes, handler: Relay
    ) -> None: ...


class Pool(Protocol):
    async def connect(self, replica_id: str, fresh: bool = False) -> UpstreamConnection: ...


class Health(Protocol):
    def succeeded(self, replica_id: str) -> None: ...

    def failed(self, replica_id: str, error: UpstreamError) -> None: ...


class Budget(Protocol):
    def started(self, now: float) -> None: ...

    def take(self, now: float) -> bool: ...
