"""What a supervisor supervises, as far as it has to know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from proxy.serve.supervise.messages import Found
from proxy.serve.supervise.reloader import Source
from proxy.serve.supervise.watch import Identity
from proxy.serve.supervise.worker import Reloadable, Stop


class Service(Source, Protocol):
    """What is supervised. `delay_s` and `drain_s`: how long workers go on accepting when they are
    to end, and how long their exchanges may go on then, as configured now. `secret` is handed to
    a successor. `seen`: the files that were read, as they were before."""

    @property
    def workers(self) -> int: ...

    @property
    def core(self) -> bool:
        """Whether there is a core beside the workers."""

    @property
    def scheme(self) -> str: ...

    @property
    def delay_s(self) -> float: ...

    @property
    def drain_s(self) -> float: ...

    @property
    def secret(self) -> bytes: ...

    @property
    def hosts(self) -> Mapping[str, tuple[str, ...]]:
        """What DNS said last of the replicas, for a successor."""

    @property
    def seen(self) -> Mapping[str, Identity]: ...

    async def work(self, index: int, stop: Stop, ready: Callable[[Reloadable], None]) -> None:
        """In a worker, or the core (`names.CORE`), see `proxy.serve.supervise.worker.Work`."""

    def on_death(self, index: int) -> None:
        """A worker was reaped, and its successor is not forked yet."""

    def drain(self, replica_id: str, on: bool) -> str:
        """From the next `load` on the replica gets nothing new, or something again. Returns why
        that cannot be, or nothing."""

    def found(self, said: Found) -> str:
        """What DNS says of the replicas, for the next `load`. Returns what has changed, in words,
        or nothing."""

    def took_over(self) -> None:
        """The sockets that came from another gateway are ours alone now."""
