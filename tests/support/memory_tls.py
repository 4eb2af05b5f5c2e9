"""TLS handshakes in memory, between a client and a server context."""

from __future__ import annotations

import ssl
from typing import Any, cast

from proxy.tls.context import ServerContext, ServerSslObject
from proxy.tls.session import TlsSession, tls_session


class Connection:
    """Both sides of one connection after their handshake. Raises what the server's side raises."""

    def __init__(
        self,
        client: ssl.SSLContext,
        server: ServerContext,
        sni: str | None = "a.example",
        session: ssl.SSLSession | None = None,
    ) -> None:
        to_server, self.to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = client.wrap_bio(
            self.to_client, to_server, server_hostname=sni, session=session
        )
        self.server = cast(
            ServerSslObject, server.wrap_bio(to_server, self.to_client, server_side=True)
        )
        pending: list[Any] = [self.client, self.server]
        for _ in range(6):
            for side in list(pending):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
                pending.remove(side)
        if self.server in pending:
            self.server.do_handshake()
        self.server.write(b"x")
        self.client.read(1)

    @property
    def session(self) -> ssl.SSLSession:
        """For the client's next connection."""
        found = self.client.session
        assert found is not None
        return found

    @property
    def resumed(self) -> bool:
        assert self.client.session_reused == self.server.session_reused
        return bool(self.server.session_reused)

    @property
    def shown(self) -> bytes:
        """The server's certificate, DER."""
        found = self.client.getpeercert(binary_form=True)
        assert found is not None
        return found

    def tls_session(self) -> TlsSession:
        found = tls_session(cast(Any, self))
        assert found is not None
        return found

    def get_extra_info(self, name: str) -> object:
        """As a transport of the server's side."""
        return {"ssl_object": self.server}[name]
