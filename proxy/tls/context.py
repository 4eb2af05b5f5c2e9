"""Server contexts of `ssl` as the gateway wants them, and a handshake in memory to try one with."""

from __future__ import annotations

import operator
import ssl
import sys
from collections.abc import Sequence
from typing import NoReturn

from proxy.tls.config import CertificateConfig
from proxy.tls.meters import TlsMeters
from proxy.tls.ticket_keys import OPEN
from proxy.tls.ticket_ring import TicketRing

_TLS12_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


class ServerSslObject(ssl.SSLObject):
    """One connection's TLS. `sni`: the host that the client named. `meters` count its end.

    `read` and `write` are OpenSSL's own: the event loop asks for both once a connection and calls
    them for every chunk, each time without the Python frame of the standard library's.
    """

    read = property(operator.attrgetter("_sslobj.read"))
    write = property(operator.attrgetter("_sslobj.write"))
    sni: str | None = None
    outgoing: ssl.MemoryBIO | None = None
    meters: TlsMeters | None = None
    _failure: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        """As usual, but a failure is told one call later if OpenSSL has an alert to send.

        asyncio and uvloop (until gh-98078) drop a connection whose handshake failed without
        sending what OpenSSL left for the client. Asked to wait for more bytes they do send it. A
        client that got an alert closes the connection; one that does not meets the deadline.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            if self.outgoing is None or not self.outgoing.pending:
                raise
            self._failure = error.with_traceback(None)
        if self._failure is not None:
            if self.meters is not None:
                self.meters.refused(self._failure)
            raise ssl.SSLWantReadError
        if self.meters is not None:
            self.meters.completed(resumed=bool(self.session_reused))


class ServerContext(ssl.SSLContext):
    """`policy`: what its connections prove (see `ticket_keys.py`). `ring` is only kept: the
    connections' tickets are made by it. `meters` count those that begin here."""

    sslobject_class = ServerSslObject
    policy: bytes = OPEN
    ring: TicketRing | None = None
    meters: TlsMeters | None = None

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        if isinstance(made, ServerSslObject):
            made.outgoing = outgoing
            made.meters = self.meters
        return made


def new_context(alpn: Sequence[str], minimum_version: ssl.TLSVersion) -> ServerContext:
    """Without a certificate."""
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = minimum_version
    context.options |= (
        ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    )
    context.set_ciphers(_TLS12_CIPHERS)
    context.set_alpn_protocols(list(alpn))
    return context


def load_chain(context: ssl.SSLContext, pair: CertificateConfig) -> None:
    """Raises ssl.SSLError or OSError."""
    # Without a password OpenSSL would ask for one on the terminal.
    context.load_cert_chain(pair.certificate, pair.key, password=_no_password)


def _no_password() -> NoReturn:
    raise OSError("it is encrypted")


def ignore_bad_names(unraisable: sys.UnraisableHookArgs) -> None:
    """For `sys.unraisablehook`. A client that names its host in other bytes than ASCII is refused
    with an alert; `ssl` would print five lines about each besides."""
    if unraisable.exc_type is UnicodeDecodeError and isinstance(unraisable.object, bytes):
        return
    sys.__unraisablehook__(unraisable)


class MemoryClient:
    """A client that trusts anything and shakes hands in memory. `session` is the last one that it
    was given."""

    def __init__(self) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE
        self.session: ssl.SSLSession | None = None

    def __repr__(self) -> str:
        return f"<MemoryClient session={self.session}>"

    def shake_hands(self, context: ssl.SSLContext) -> bool:
        """Whether the session was resumed. Raises ssl.SSLError."""
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = self._context.wrap_bio(to_client, to_server, session=self.session)
        server = context.wrap_bio(to_server, to_client, server_side=True)
        pending = [client, server]
        for _ in range(8):
            for side in list(pending):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
                pending.remove(side)
            if not pending:
                return self._resumed(client, server)
        raise ssl.SSLError("the handshake does not end")

    def _resumed(self, client: ssl.SSLObject, server: ssl.SSLObject) -> bool:
        # Tickets come after the handshake (RFC 8446 section 4.6.1), before the first byte.
        server.write(b"x")
        client.read(1)
        self.session = client.session
        return bool(client.session_reused)
