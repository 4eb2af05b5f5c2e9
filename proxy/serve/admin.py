"""The operator's listener: health, readiness, metrics, version and configuration; nothing that
changes anything.

Every worker serves it on the same listening socket. Whoever accepts answers for all of them from
shared memory. Never expose it to clients: it has neither TLS nor authentication.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib import metadata

import msgspec
from aiohttp import web

from core.clock import Clock
from core.metrics import MetricsBoard
from core.shared_memory import StateBoard, WorkerState, unready_reasons
from proxy.budgets.config import BudgetsConfig
from proxy.recent import RecentBoard
from proxy.serve.exemplars import exemplars_of
from proxy.serve.exposition import CONTENT_TYPE_OPENMETRICS, CONTENT_TYPE_TEXT, render
from proxy.serve.page.feed import LivePage
from proxy.serve.supervise.messages import Outcome

KEEP_ALIVE_S = 30.0
SHUTDOWN_S = 1.0
NAME = "headrace"

Reasons = Callable[[], list[str]]
"""Why this worker cannot serve, in words; empty when it can."""

Explain = Callable[[bytes], Awaitable[tuple[int, Mapping[str, object]]]]
"""Status and document of the answer to the question where a request would go."""

_Page = Callable[[web.BaseRequest], Awaitable[web.Response]]
_log = logging.getLogger("headrace.admin")


def _version() -> str:
    try:
        return metadata.version(NAME)
    except metadata.PackageNotFoundError:  # run from a checkout that was never installed
        return "unknown"


def _json(status: int, document: Mapping[str, object]) -> web.Response:
    return web.Response(
        status=status,
        body=msgspec.json.encode(document) + b"\n",
        headers={"Content-Type": "application/json", "Cache-Control": "no-store"},
    )


class _Pages:
    """The answers."""

    def __init__(
        self,
        metrics: MetricsBoard,
        reasons: Reasons,
        states: StateBoard | None,
        outcome: Callable[[], Outcome],
        clock: Clock,
        *,
        live: LiveSources,
        explain: Explain | None,
    ) -> None:
        self._metrics = metrics
        self._reasons = reasons
        self._states = states
        self._outcome = outcome
        self._clock = clock
        self._explain = explain
        self._recent = live.recent
        self.live = LivePage(metrics, live.recent, self._status, live.budgets, clock)
        self._by_path: dict[str, _Page] = {
            "/healthz": self.alive,
            "/readyz": self.ready,
            "/metrics": self.metrics,
            "/version": self.version,
            "/config": self.config,
        }

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        answer = await self._answer(request)
        if not answer.prepared:  # else aiohttp says its own name and version, and Python's
            answer.headers["Server"] = NAME
        return answer

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method in ("GET", "HEAD"):
            if (page := self._by_path.get(request.path)) is not None:
                return await page(request)
            if (answer := await self.live.answer(request)) is not None:
                return answer
        if request.method == "POST" and request.path == "/route/explain" and self._explain:
            try:
                return _json(*await self._explain(await request.read()))
            except web.HTTPRequestEntityTooLarge:
                return _json(413, {"error": "a question has at most a megabyte"})
        return _json(404, {"error": "not found"})

    async def alive(self, _: web.BaseRequest) -> web.Response:
        return web.Response(text="ok\n", headers={"Cache-Control": "no-store"})

    async def ready(self, _: web.BaseRequest) -> web.Response:
        reasons = self._all_reasons()
        return _json(503 if reasons else 200, {"ready": not reasons, "reasons": reasons})

    def _all_reasons(self) -> list[str]:
        """Why the workers together should get no traffic."""
        reasons = list(self._reasons())
        if self._states is not None:
            statuses = self._states.read()
            if reasons:  # our own row would only say once more that there are some
                statuses = [status for status in statuses if status.pid != os.getpid()]
            reasons += unready_reasons(statuses, self._clock()) if statuses else []
        return reasons

    def _status(self) -> Mapping[str, object]:
        """For the live page."""
        reasons = self._all_reasons()
        statuses = [] if self._states is None else self._states.read()
        workers = sum(status.state is not WorkerState.ABSENT for status in statuses)
        return {
            "ready": not reasons,
            "reasons": reasons,
            "workers": max(workers, 1),
            "generation": self._outcome().generation,
        }

    async def metrics(self, request: web.BaseRequest) -> web.Response:
        """Rendered in slices: a thread would hold the interpreter for 5 ms at a time."""
        as_openmetrics = "application/openmetrics-text" in request.headers.get("Accept", "")
        pieces = []
        told = self._recent if as_openmetrics else None
        exemplars = {} if told is None else exemplars_of(told.read(told.places))
        for piece in render(self._metrics.collect().values(), as_openmetrics, exemplars):
            pieces.append(piece)
            await asyncio.sleep(0)
        kind = CONTENT_TYPE_OPENMETRICS if as_openmetrics else CONTENT_TYPE_TEXT
        return web.Response(body=b"".join(pieces), headers={"Content-Type": kind})

    async def config(self, _: web.BaseRequest) -> web.Response:
        """Which configuration is in force, and how the last reload went. `at`: Unix seconds."""
        outcome = self._outcome()
        last = {
            "result": outcome.result,
            "at": outcome.at,
            "changed": outcome.changed,
            "reasons": outcome.reason.splitlines(),
        }
        return _json(200, {"generation": outcome.generation, "last_reload": last})

    async def version(self, _: web.BaseRequest) -> web.Response:
        document = {
            "name": NAME,
            "version": _version(),
            "python": platform.python_version(),
            "pid": os.getpid(),
        }
        return _json(200, document)


@dataclass(frozen=True, slots=True)
class LiveSources:
    """What the live page shows beside the metrics."""

    recent: RecentBoard | None = None
    budgets: Callable[[], BudgetsConfig | None] = lambda: None


class AdminServer:
    """A running admin listener of this worker."""

    def __init__(self, server: asyncio.Server, protocols: web.Server, live: LivePage) -> None:
        self._server = server
        self._live = live
        self._protocols = protocols

    def __repr__(self) -> str:
        return f"<AdminServer, {len(self._protocols.connections)} connections>"

    async def close(self) -> None:
        """Accept no more, give answers under way SHUTDOWN_S seconds. May be called twice."""
        self._server.close()
        self._live.close()
        self._protocols.pre_shutdown()  # ends idle connections
        await self._protocols.shutdown(SHUTDOWN_S)


async def start_admin(
    sock: socket.socket,
    *,
    metrics: MetricsBoard,
    reasons: Reasons,
    states: StateBoard | None = None,
    outcome: Callable[[], Outcome] = Outcome,
    clock: Clock = time.monotonic,
    live: LiveSources = LiveSources(),
    explain: Explain | None = None,
) -> AdminServer:
    """Serve the admin pages on `sock`, bound and listening, which stays the caller's to close."""
    loop = asyncio.get_running_loop()
    pages = _Pages(metrics, reasons, states, outcome, clock, live=live, explain=explain)
    protocols = web.Server(
        pages.answer, access_log=None, keepalive_timeout=KEEP_ALIVE_S, logger=_log
    )
    own = sock.dup()
    own.setblocking(False)
    if own.family == socket.AF_UNIX:
        server = await loop.create_unix_server(protocols, sock=own)
    else:
        server = await loop.create_server(protocols, sock=own)
    return AdminServer(server, protocols, pages.live)
