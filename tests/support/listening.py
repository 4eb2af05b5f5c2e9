"""Servers of tests in the test's own loop, which end without losing what they have just accepted.

asyncio makes the transport of an accepted socket some passes of the loop later, and that fails when
the server was closed in between: the transport is left over, unclosed. So a listening socket is
first looked at no more, then the loop makes these passes, and then the server is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from aiohttp import web

_PASSES_OF_AN_ACCEPT = 4


async def settled(sockets: Sequence[Any]) -> None:
    """Accept nothing more at `sockets`, and wait until what was accepted has its protocol."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, asyncio.SelectorEventLoop):  # uvloop accepts in one step
        for listening in sockets:
            loop.remove_reader(listening.fileno())
        for _ in range(_PASSES_OF_AN_ACCEPT):
            await asyncio.sleep(0)


async def close(server: asyncio.Server) -> None:
    """In place of `server.close()`."""
    await settled(server.sockets)
    server.close()


@contextlib.asynccontextmanager
async def served(answer: Callable[..., Any], **options: Any) -> AsyncIterator[int]:
    """`asyncio.start_server` on a port of 127.0.0.1, for the time of the block."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0, **options)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        await close(server)


class Site:
    """An aiohttp application on a port of 127.0.0.1, which stays the same when started again."""

    def __init__(self, *routes: web.RouteDef, tls: ssl.SSLContext | None = None) -> None:
        self.port = 0
        self._routes = routes
        self._tls = tls
        self._runner: web.AppRunner | None = None
        self._socket: socket.socket | None = None

    def __repr__(self) -> str:
        return f"<Site on {self.port}>"

    async def start(self) -> None:
        application = web.Application()
        application.router.add_routes(self._routes)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        self._socket = socket.create_server(("127.0.0.1", self.port))
        self.port = self._socket.getsockname()[1]
        await web.SockSite(self._runner, self._socket, ssl_context=self._tls).start()

    async def stop(self) -> None:
        if self._runner is not None and self._socket is not None:
            await settled([self._socket])
            await self._runner.cleanup()
            self._runner = self._socket = None
