"""Time that is added in one phase, whichever it is, is named by `headrace budget` and the page."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from client import Client, chat
from ports import free_port
from running import Identity, InProcess, base_config, eventually

from loadtest.replica import FakeReplica
from proxy.listen.arrivals import Arrivals
from proxy.phases import PHASES
from proxy.serve import budget
from proxy.serve.histograms import Page
from proxy.serve.page.view import View

ADDED_S = 0.1
"""More than the 20 ms that must be named (tests/proxy/budgets/test_growth.py): this machine may be
busy with something else for as long."""
BEFORE, AFTER = 20, 2


class Gateway:
    """The gateway, and where time can be added in it."""

    def __init__(self, running: InProcess, context: ssl.SSLContext) -> None:
        self._running = running
        self._context = context
        pipeline = running.worker._snapshots.current.pipeline
        services = pipeline._services
        dispatcher = services.dispatcher
        self._places: dict[str, tuple[Any, str]] = {
            "tls": (Arrivals, "_turn"),
            "gate": (pipeline, "_route"),
            "auth": (services.authenticator, "authenticate"),
            "tokenize": (services.prompter, "chat"),
            "reserve": (services.limiter, "reserve"),
            "queue": (dispatcher._router, "lease"),
            "route": (dispatcher._router, "lease"),
            "connect": (dispatcher._pool, "connect"),
        }
        self._catalog = services.catalog

    def slow_down(self, phase: str, patch: pytest.MonkeyPatch) -> None:
        if phase == "understand":
            patch.setattr(self._catalog, "resolve", slowly(self._catalog.resolve))
        elif phase in self._places:
            owner, name = self._places[phase]
            patch.setattr(owner, name, late(getattr(owner, name), phase))

    async def ask(self, times: int, phase: str = "") -> None:
        user = {
            "first_token": f"fake:slow_head={ADDED_S}",
            "relay": f"fake:token_ms={ADDED_S * 1e3}",
        }
        document = chat("where?", max_tokens=3, user=user.get(phase, "somebody"))
        body = json.dumps(document).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        data = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        cut = {"head": 30, "body": len(data) - 10}.get(phase, 0)
        for _ in range(times):
            client = await Client.open(self._running.port, self._context)
            if cut:
                client.writer.write(data[:cut])
                await asyncio.sleep(ADDED_S)
            client.writer.write(data[cut:])
            assert (await client.answer()).status == 200
            client.close()

    async def page(self, exchanges: int) -> str:
        """Once so many have been counted."""

        async def counted() -> bool:
            return self._running.metric("headrace_phase_seconds", "relay") == exchanges

        await eventually(counted)
        text: bytes = await asyncio.to_thread(
            budget.fetch,
            self._running.config.admin.address.parsed,
            "/metrics",  # type: ignore[union-attr]
        )
        return text.decode()

    def view(self, view: View, now: float) -> list[str]:
        families = self._running.worker.metrics.board.collect()
        return [row["phase"] for row in view.take(families, now, None)["slower"]]


def slowly(call: Callable[..., Any]) -> Callable[..., Any]:
    def slow(*given: Any, **options: Any) -> Any:
        time.sleep(ADDED_S)
        return call(*given, **options)

    return slow


def late(call: Callable[..., Awaitable[Any]], phase: str) -> Callable[..., Awaitable[Any]]:
    async def later(*given: Any, **options: Any) -> Any:
        if phase == "queue":
            options["enter"]("queue", time.monotonic())
        await asyncio.sleep(ADDED_S)
        if phase == "queue":
            options["enter"]("route", time.monotonic())
        return await call(*given, **options)

    return later


async def test_each_phase_that_becomes_slow_is_named(tmp_path: Path) -> None:
    identity = Identity(tmp_path)
    async with FakeReplica(prefill_base_ms=0, token_ms=0) as replica:
        document = base_config([replica.url], admin={"address": f"127.0.0.1:{free_port()}"})
        document["listen"]["tls"] = identity.tls
        async with InProcess(document, tmp_path) as running:
            gateway = Gateway(running, identity.client_context())
            await gateway.ask(BEFORE)
            exchanges = BEFORE
            for number, phase in enumerate(PHASES):
                before, view = Page(await gateway.page(exchanges)), View()
                gateway.view(view, number)
                with pytest.MonkeyPatch.context() as patch:
                    gateway.slow_down(phase, patch)
                    await gateway.ask(AFTER, phase)
                exchanges += AFTER
                slower = budget.slower_phases(before, Page(await gateway.page(exchanges)))
                assert phase in [growth.phase for growth in slower]
                assert phase in gateway.view(view, number + 1)
                assert f"Slower than before: {phase}, " in budget.render(
                    [budget.Row("t", "gateway", None, 1, None, None, None, 0.0)], slower
                )
