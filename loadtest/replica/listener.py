"""The replica's listening socket. Performs (sockets)."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

# From the acceptance of a socket by asyncio to its `connection_made`.
_PASSES_OF_AN_ACCEPT = 3


class Listener:
    """Accepts connections at `host` and `port`; port 0 becomes the one that the system chose."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self.host = host
        self.port = port
        self._tls = tls
        self._server: asyncio.AbstractServer | None = None
        self._socket: socket.socket | None = None

    def __repr__(self) -> str:
        return f"<Listener {self.host}:{self.port} {'open' if self._server else 'shut'}>"

    @property
    def is_open(self) -> bool:
        return self._server is not None

    async def start(self, make: Callable[[], asyncio.Protocol]) -> None:
        """Listen, if it does not; OSError when the port is taken."""
        if self._server is not None:
            return
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        self._socket = socket.create_server((self.host, self.port), family=family, backlog=4096)
        self.port = self._socket.getsockname()[1]
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            make, sock=self._socket, ssl=self._tls, backlog=4096
        )

    def stop(self) -> None:
        """Refuse connections from now on. A socket that asyncio has accepted gets its transport
        some passes of the loop later, and only while its server is open: so that closes last."""
        server, listening = self._server, self._socket
        self._server = self._socket = None
        if server is None or listening is None:
            return
        loop = asyncio.get_running_loop()
        if isinstance(loop, asyncio.SelectorEventLoop):
            loop.remove_reader(listening.fileno())
            listening.shutdown(socket.SHUT_RDWR)
            _close_after(server, _PASSES_OF_AN_ACCEPT, loop)
        else:  # uvloop accepts in one step
            server.close()

    async def stopped(self) -> None:
        """`stop`, and return when what was accepted has its protocol."""
        self.stop()
        for _ in range(_PASSES_OF_AN_ACCEPT + 1):
            await asyncio.sleep(0)


def _close_after(
    server: asyncio.AbstractServer, passes: int, loop: asyncio.AbstractEventLoop
) -> None:
    if passes:
        loop.call_soon(_close_after, server, passes - 1, loop)
    else:
        server.close()
