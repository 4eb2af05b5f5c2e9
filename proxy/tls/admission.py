"""Whether a request may come over the connection that it came over.

OpenSSL verifies a client's certificate in a full handshake, and in that alone: a resumed session
brings the certificate of the handshake before it, and a connection stays open while certificates
expire and authorities are withdrawn. One connection may also ask for another host than it named in
its handshake (RFC 9110 section 7.4). So the rule is a rule about requests.
"""

from __future__ import annotations

from cryptography import x509

from core.errors import Forbidden, MisdirectedRequest
from core.exchange import Request
from proxy.tls.certificates import Authorities, HostTable
from proxy.tls.session import TlsSession, describe


class ClientRule:
    """Who may issue clients' certificates, and for which hosts one is `required`."""

    def __init__(self, authorities: Authorities, required: HostTable[bool]) -> None:
        self.required = required
        self._authorities = authorities

    def __repr__(self) -> str:
        return f"<ClientRule {self._authorities!r} {self.required!r}>"

    def judge(self, session: TlsSession) -> None:
        """Note in `session` who the client is, and until when that holds."""
        session.judged_by = self
        session.certificate = None
        encoded = session.peer_certificate
        if encoded is None:
            return
        try:
            leaf = x509.load_der_x509_certificate(encoded)
            certificate = describe(leaf, encoded)
        except ValueError:
            return
        issuer = self._authorities.issuer_of(leaf)
        if issuer is None and session.policy != self._authorities.policy:
            return  # verified when other authorities were trusted, and none of today's signed it
        session.certificate = certificate
        session.trusted_until = certificate.not_after
        if issuer is not None:
            session.trusted_until = min(
                certificate.not_after, issuer.not_valid_after_utc.timestamp()
            )


class HostRules:
    """What a connection must have shown for requests to a host. `certificates`: the number of the
    certificate that each host is shown."""

    def __init__(self, certificates: HostTable[int], clients: ClientRule | None) -> None:
        self._certificates = certificates
        self._clients = clients

    def __repr__(self) -> str:
        return f"<HostRules {self._certificates!r} {self._clients!r}>"

    def admit(self, session: TlsSession | None, request: Request, wall_now: float) -> None:
        """Let `request` pass and note its client certificate, or raise MisdirectedRequest or
        Forbidden."""
        sni = session.sni if session is not None else None
        host = _host(request) or sni
        if host != sni and self._policy(host) != self._policy(sni):
            raise MisdirectedRequest(
                "This connection was made for another host; open one for the host of the request."
            )
        clients = self._clients
        if clients is None:
            return
        if session is not None:
            if session.judged_by is not clients:
                clients.judge(session)
            if session.certificate is not None and wall_now < session.trusted_until:
                request.client_certificate = session.certificate
                return
        if clients.required.find(host):
            raise Forbidden(
                "This host needs a client certificate: a valid one, of an authority that is "
                "trusted here, shown when the connection is opened.",
                code="client_certificate_required",
            )

    def _policy(self, host: str | None) -> tuple[int, bool]:
        clients = self._clients
        return self._certificates.find(host), clients is not None and clients.required.find(host)


def _host(request: Request) -> str | None:
    """The host of the request without its port, in lower case."""
    value = request.header(b"host")
    if value is None:
        return None
    text = value.decode("latin-1").lower()
    if text.startswith("["):
        return text.partition("]")[0] + "]"
    return text.partition(":")[0].removesuffix(".")
