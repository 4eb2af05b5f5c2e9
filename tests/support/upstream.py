"""The pool with a clock of its own, and who reads its responses, on both event loops."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from backend.config import PoolConfig, ReplicaConfig, ReplicaTlsConfig, UpstreamConfig
from backend.pool import Pool
from backend.target import Hold
from core.errors import UpstreamError
from core.exchange import Header
from core.metrics import Metrics

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def on_both_loops(test: Callable[..., Any]) -> Callable[..., None]:
    """Transports differ between the two: every promise is kept on both."""

    def run(*args: Any, loop: str, **fixtures: Any) -> None:
        with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            runner.run(test(*args, **fixtures))

    signature = inspect.signature(test)
    loop = inspect.Parameter("loop", inspect.Parameter.KEYWORD_ONLY)
    run.__name__, run.__doc__ = test.__name__, test.__doc__
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), loop]
    )
    return pytest.mark.parametrize("loop", LOOPS)(run)


class Answer:
    """A ResponseHandler that can be awaited."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""  # its start
        self.size = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.started = asyncio.Event()

    @property
    def progress(self) -> int:
        return self.status + self.size

    def on_head(self, status: int, headers: list[Header]) -> None:
        self.status = status

    def on_body(self, data: bytes) -> None:
        self.size += len(data)
        self.body = (self.body + data)[:100]
        self.started.set()

    def on_end(self) -> None:
        self.done.set_result(None)

    def on_failed(self, error: UpstreamError) -> None:
        self.done.set_exception(error)


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


class Client:
    """A pool of one replica, with a clock of its own."""

    def __init__(
        self,
        url: str,
        tls: ReplicaTlsConfig | None = None,
        protocol: Any = "http1",
        **options: Any,
    ) -> None:
        self.now = 0.0
        self.metrics = Metrics.private()
        options.setdefault("pool", PoolConfig(warm=0))
        self.pool = Pool(
            [ReplicaConfig(url=url, model="m", id="r", tls=tls, protocol=protocol)],
            UpstreamConfig(**options),
            self.metrics,
            lambda: self.now,
        )

    async def begin(self, fresh: bool = False, body: bytes = b"") -> tuple[Hold, Answer]:
        connection, answer = await self.pool.connect("r", fresh), Answer()
        connection.send(b"POST", b"/v1/x", [], body, answer)
        return connection, answer

    async def ask(self, fresh: bool = False) -> tuple[Hold, Answer]:
        connection, answer = await self.begin(fresh)
        async with asyncio.timeout(20):
            await answer.done
        return connection, answer

    def connects(self, result: str) -> float:
        return self.metrics.value("headrace_upstream_connects_total", "r", result)
