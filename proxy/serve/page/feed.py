"""The live page and its feed, for the admin listener. Performs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

import msgspec
from aiohttp import web

from core.clock import Clock
from core.metrics import MetricsBoard
from proxy.budgets.config import BudgetsConfig
from proxy.recent import RecentBoard
from proxy.serve.page.view import View

PERIOD_S = 1.0
MOST_FEEDS = 20
"""At once. They share one reading of the metrics a second."""
_FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; base-uri 'none'; frame-ancestors 'none'"
)

Status = Callable[[], Mapping[str, Any]]
"""`ready`, `reasons`, `workers` and `generation` now."""


class LivePage:
    """Answers for its paths, and None for all others."""

    def __init__(
        self,
        metrics: MetricsBoard,
        recent: RecentBoard | None,
        status: Status,
        budgets: Callable[[], BudgetsConfig | None],
        clock: Clock,
    ) -> None:
        self._metrics = metrics
        self._recent = recent
        self._status = status
        self._budgets = budgets
        self._clock = clock
        self._feeds = 0
        self._view = View()
        self._read_at = float("-inf")
        self._event = b""
        self._ending = asyncio.Event()

    def __repr__(self) -> str:
        return f"<LivePage {self._feeds} feeds>"

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse | None:
        if request.path == "/live":
            return await self._feed(request)
        if request.path not in _FILES:
            return None
        name, kind = _FILES[request.path]
        body = resources.files(__package__).joinpath(name).read_bytes()
        return web.Response(
            body=body,
            content_type=kind,
            charset="utf-8",
            headers={"Cache-Control": "no-cache", "Content-Security-Policy": _POLICY},
        )

    def close(self) -> None:
        """End the feeds."""
        self._ending.set()

    async def _feed(self, request: web.BaseRequest) -> web.StreamResponse:
        """Server-sent events, one JSON document a second."""
        if self._feeds >= MOST_FEEDS:
            return web.Response(status=503, text="too many are looking\n")
        answer = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                "Server": "headrace",
            }
        )
        self._feeds += 1
        try:
            await answer.prepare(request)
            while not self._ending.is_set():
                await answer.write(self._next_event())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PERIOD_S):
                        await self._ending.wait()
        except ConnectionError:
            pass
        finally:
            self._feeds -= 1
            if not self._feeds:
                self._view = View()
        return answer

    def _next_event(self) -> bytes:
        now = self._clock()
        if now - self._read_at > PERIOD_S / 2:
            self._read_at = now
            shown = self._view.take(self._metrics.collect(), now, self._budgets())
            recent = [] if self._recent is None else self._recent.read()
            document = {**self._status(), **shown, "recent": recent}
            self._event = b"data: %b\n\n" % msgspec.json.encode(document)
        return self._event
