"""Opens connections to one replica, each in the protocol that its configuration asks for.

`auto` is what ALPN agrees on (RFC 7301), and HTTP/1.1 in the clear. HTTP/2 is ready only when the
replica's settings have arrived: a server that accepts and then says nothing is noticed here, before
any request depends on it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial

from backend.config import ReplicaConfig, UpstreamConfig
from backend.dial import dial
from backend.http1_protocol import ConnectionOwner, Http1Protocol
from backend.http2_protocol import Http2Owner, Http2Protocol
from backend.request_head import Http2RequestHead, RequestHead
from core.errors import ConfigError, UpstreamTimeout, UpstreamUnreachable
from core.exchange import Header
from core.http2.engine import Engine, EngineOptions, Http2Handler
from core.http2.engines import EngineName, make_engine

OPTIONS = EngineOptions(role="client", stream_window=256 * 1024, connection_window=2**30)
"""What a stream's window bounds is what one slow client can hold. The connection's window is never
in the way: otherwise a few slow clients would stop all others."""


class Dialer:
    """The way to one replica."""

    def __init__(
        self, config: ReplicaConfig, upstream: UpstreamConfig, context: ssl.SSLContext | None
    ) -> None:
        """`context`: as `build_contexts` made it for this replica. Raises ConfigError."""
        address = config.address
        if address.tls and context is None:
            raise ConfigError(f"no TLS context was prepared for replica {config.replica.id}")
        authority, authorization = address.authority.encode(), _authorization(config)
        scheme = b"https" if address.tls else b"http"
        self.id = config.replica.id
        self._address = address
        self._context = context
        self._server_name = config.tls.server_name if config.tls else None
        self._timeouts = upstream.timeouts
        self._protocol = config.protocol
        more = _rank(config)
        self._http1_head = RequestHead(authority, authorization, more=more)
        self._http2_head = Http2RequestHead(authority, authorization, scheme, more=more)
        self._engine: Callable[[Http2Handler], Engine] = partial(_engine, upstream.http2_engine)

    def __repr__(self) -> str:
        return f"<Dialer of {self.id}: {self._protocol}>"

    @property
    def may_multiplex(self) -> bool:
        """Whether a connection may turn out to be HTTP/2."""
        return self._protocol == "h2" or (self._protocol == "auto" and self._address.tls)

    async def open(
        self, http1: ConnectionOwner, http2: Http2Owner
    ) -> Http1Protocol | Http2Protocol:
        """A usable connection. Raises UpstreamUnreachable, UpstreamTimeout (`phase` connect or tls)
        or UpstreamProtocolError. Closes everything when it fails or is cancelled."""

        def choose(alpn: str | None) -> Http1Protocol | Http2Protocol | None:
            if self._protocol == "h2" and self._context is not None and alpn != "h2":
                return None
            if alpn == "h2" or self._protocol == "h2":
                return Http2Protocol(http2, self._http2_head, self._engine)
            return Http1Protocol(http1, self._http1_head)

        made: Http1Protocol | Http2Protocol = await dial(
            self._address, self._timeouts, choose, self._context, self._server_name
        )
        if isinstance(made, Http2Protocol):
            await self._usable(made)
        return made

    async def _usable(self, made: Http2Protocol) -> None:
        try:
            async with asyncio.timeout(self._timeouts.connect_s):
                await made.opened
        except TimeoutError as error:
            made.abort()
            raise UpstreamTimeout(
                "The replica did not begin to speak HTTP/2 in time.",
                phase="connect",
                retryable=True,
            ) from error
        except BaseException:
            made.abort()
            raise
        if made.closed:
            raise UpstreamUnreachable("The replica closed the connection at once.")


def _rank(config: ReplicaConfig) -> tuple[Header, ...]:
    """Which of its engines a vLLM with several is to use."""
    if config.data_parallel_rank is None:
        return ()
    return ((b"x-data-parallel-rank", b"%d" % config.data_parallel_rank),)


def _engine(name: EngineName, handler: Http2Handler) -> Engine:
    return make_engine(name, handler, OPTIONS)


def _authorization(config: ReplicaConfig) -> bytes | None:
    if config.api_key is None:
        return None
    key = config.api_key.reveal()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError(f"the api_key of replica {config.replica.id} is not visible ASCII")
    return b"Bearer " + key.encode()
