"""What the product's waiting room asks of an event loop, in simulated time. Pure."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from routing.simulator.world import World

_COARSEST_S = 0.05
"""A timer of the waiting room looks every 5 ms for what other processes gave back, of which there
are none here; looking less often makes a simulation faster."""


class Ticket:
    """A future that whoever waits for it is called by: `then`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._outcome: tuple[Any, BaseException | None] | None = None
        self.then: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        return f"<Ticket {self._outcome}>"

    def __await__(self) -> Generator[Ticket, None, Any]:
        yield self
        assert self._outcome is not None
        result, error = self._outcome
        if error is not None:
            raise error
        return result

    def done(self) -> bool:
        return self._outcome is not None

    def cancelled(self) -> bool:
        return False

    def result(self) -> Any:
        assert self._outcome is not None
        return self._outcome[0]

    def exception(self) -> BaseException | None:
        assert self._outcome is not None
        return self._outcome[1]

    def set_result(self, result: Any) -> None:
        self._settle(result, None)

    def set_exception(self, error: BaseException) -> None:
        self._settle(None, error)

    def _settle(self, result: Any, error: BaseException | None) -> None:
        self._outcome = result, error
        self._world.later(0.0, self._tell)

    def _tell(self) -> None:
        self.then()  # which may have been set since


class SimulatedLoop:
    """Calls back on the simulation's clock."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __repr__(self) -> str:
        return f"<SimulatedLoop of {self._world}>"

    def create_future(self) -> Ticket:
        return Ticket(self._world)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._world.later(0.0, callback)

    def call_later(self, delay: float, callback: Callable[[], None]) -> object:
        self._world.later(max(delay, _COARSEST_S), callback)
        return self
