"""What TLS says of one connection: the host that the client named, and its certificate."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, cast

from cryptography import x509

from core.exchange import ClientCertificate, Handshake
from proxy.tls.context import ServerContext, ServerSslObject
from proxy.tls.ticket_keys import OPEN

if TYPE_CHECKING:
    import asyncio


class TlsSession:
    """One connection's TLS, once its handshake is over.

    `sni`: the host that the client named, in lower case. `policy`: under which its certificate was
    verified, in this handshake or in the one whose session it resumes. `judged_by`, `certificate`
    and `trusted_until` (Unix seconds) are what `proxy/tls/admission.py` made of the certificate.
    """

    __slots__ = ("_connection", "certificate", "judged_by", "policy", "sni", "trusted_until")

    def __init__(self, connection: ServerSslObject) -> None:
        context = connection.context
        self._connection = connection
        self.sni = connection.sni
        self.policy = context.policy if isinstance(context, ServerContext) else OPEN
        self.judged_by: object = None
        self.certificate: ClientCertificate | None = None
        self.trusted_until = 0.0

    def __repr__(self) -> str:
        return f"<TlsSession sni={self.sni} resumed={self.resumed}>"

    @property
    def resumed(self) -> bool:
        return bool(self._connection.session_reused)

    @property
    def peer_certificate(self) -> bytes | None:
        """The client's own certificate, DER. A resumed session has it from its ticket."""
        return self._connection.getpeercert(binary_form=True)


def tls_session(transport: asyncio.BaseTransport) -> TlsSession | None:
    """None for a connection without TLS."""
    connection = cast("ServerSslObject | None", transport.get_extra_info("ssl_object"))
    return None if connection is None else TlsSession(connection)


def handshake_of(transport: asyncio.BaseTransport, seconds: float) -> Handshake:
    """The one that has just ended, after `seconds`."""
    connection = cast("ServerSslObject", transport.get_extra_info("ssl_object"))
    return Handshake(seconds, bool(connection.session_reused))


def describe(leaf: x509.Certificate, encoded: bytes) -> ClientCertificate:
    """The value that a request carries. Raises ValueError when its names cannot be read."""
    dns: list[str] = []
    uris: list[str] = []
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        dns = names.get_values_for_type(x509.DNSName)
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except x509.ExtensionNotFound:
        pass
    except (x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise ValueError(str(error)) from error
    return ClientCertificate(
        subject=leaf.subject.rfc4514_string(),
        dns_names=tuple(dns),
        uri_names=tuple(uris),
        fingerprint=hashlib.sha256(encoded).hexdigest(),
        not_after=leaf.not_valid_after_utc.timestamp(),
    )
