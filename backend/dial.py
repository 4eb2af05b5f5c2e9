"""Opens a socket to a replica: name, connect, TLS, each under its own deadline.

Everything that can go wrong here is mapped to `core.errors` here. Nothing has been sent yet, so
every failure may be retried elsewhere.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from backend.address import Address
from backend.config import TimeoutsConfig
from core.errors import Unavailable, UpstreamTimeout, UpstreamUnreachable

REFUSED = "upstream_refused"
"""The reason of an `UpstreamUnreachable` that proves that nobody listens."""

P = TypeVar("P", bound=asyncio.Protocol)


class _Chooser(asyncio.Protocol, Generic[P]):
    """Stands in until the handshake has told what to speak. `chosen` is None when the server does
    not speak what is wanted."""

    def __init__(self, choose: Callable[[str | None], P | None]) -> None:
        self._choose = choose
        self.chosen: P | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = cast(asyncio.Transport, transport)
        tls = made.get_extra_info("ssl_object")
        self.chosen = self._choose(tls.selected_alpn_protocol() if tls is not None else None)
        if self.chosen is None:
            made.abort()
        else:
            made.set_protocol(self.chosen)
            self.chosen.connection_made(made)


async def dial(
    address: Address,
    timeouts: TimeoutsConfig,
    choose: Callable[[str | None], P | None],
    context: ssl.SSLContext | None,
    server_name: str | None,
) -> P:
    """The protocol that `choose` made for the outcome of ALPN (None: there was none), connected.
    Closes everything when it fails or is cancelled.

    Raises UpstreamUnreachable or UpstreamTimeout (`phase` connect or tls).
    """
    chooser = _Chooser(choose)
    sock = await _connect_in_time(address, timeouts.connect_s)
    loop = asyncio.get_running_loop()
    options: dict[str, Any] = {}
    if context is not None:
        # Our own deadline comes first; the loop's default of 60 s must not be the one that acts.
        options = {
            "ssl": context,
            "server_hostname": server_name or address.host,
            "ssl_handshake_timeout": timeouts.tls_s + 1,
            "ssl_shutdown_timeout": 1,
        }
    try:
        async with asyncio.timeout(timeouts.tls_s):
            if address.path:
                await loop.create_unix_connection(lambda: chooser, sock=sock)
            else:
                await loop.create_connection(lambda: chooser, sock=sock, **options)
    except TimeoutError as error:
        sock.close()
        raise UpstreamTimeout(
            "The replica did not finish the TLS handshake in time.", phase="tls", retryable=True
        ) from error
    except (ssl.SSLError, ssl.CertificateError) as error:
        sock.close()
        raise UpstreamUnreachable(
            "TLS with the replica failed.", code="upstream_tls_failed"
        ) from error
    except OSError as error:
        sock.close()
        raise UpstreamUnreachable("The replica closed the connection at once.") from error
    except BaseException:
        sock.close()
        raise
    if chooser.chosen is None:
        raise UpstreamUnreachable("The replica does not offer HTTP/2.", code="upstream_no_http2")
    return chooser.chosen


async def _connect_in_time(address: Address, seconds: float) -> socket.socket:
    try:
        async with asyncio.timeout(seconds):
            return await _connect(address)
    except TimeoutError as error:
        raise UpstreamTimeout(
            "The replica did not accept a connection in time.", phase="connect", retryable=True
        ) from error
    except socket.gaierror as error:
        raise UpstreamUnreachable("The replica's host name is not known.") from error
    except (ConnectionRefusedError, FileNotFoundError) as error:
        raise UpstreamUnreachable("The replica refuses connections.", code=REFUSED) from error
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):  # ours to mend, not the replica's
            raise Unavailable(
                "The gateway is out of file descriptors.",
                code="out_of_descriptors",
                retry_after_s=1,
            ) from error
        raise UpstreamUnreachable("The replica cannot be connected to.") from error


async def _connect(address: Address) -> socket.socket:
    """To the first of the host's addresses that accepts; the last one's OSError otherwise."""
    if address.path:
        return await _connect_socket(socket.AF_UNIX, address.path)
    if address.is_ip:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        return await _connect_socket(family, (address.host, address.port))
    found = await asyncio.get_running_loop().getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM
    )
    for family, _, _, _, target in found[:-1]:
        try:
            return await _connect_socket(family, target)
        except OSError:
            continue
    return await _connect_socket(found[-1][0], found[-1][4])


async def _connect_socket(family: int, target: Any) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        if family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(sock, target)
    except BaseException:
        sock.close()
        raise
    return sock
