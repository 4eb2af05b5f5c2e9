"""TLS towards the replicas: verified by default, with sessions resumed.

asyncio has no way to hand a session to a new connection. A context whose `wrap_bio` remembers the
last session with its replica does it underneath, for asyncio and uvloop alike. Each replica has
its own context, so a session never crosses a change of host, name or verification.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any

from backend.config import ReplicaConfig, ReplicaTlsConfig
from core.errors import ConfigError

_ALPN = {"http1": ["http/1.1"], "h2": ["h2"], "auto": ["h2", "http/1.1"]}
"""What is offered (RFC 7301), the favourite first."""


class ResumingContext(ssl.SSLContext):
    """A client context for one server that offers the newest session that can be resumed."""

    _last: ssl.SSLObject | None = None
    _session: ssl.SSLSession | None = None

    def wrap_bio(  # type: ignore[override]
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        if session is None:
            session = self._newest()
        made = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        self._last = made
        return made

    def _newest(self) -> ssl.SSLSession | None:
        """TLS 1.3 tickets come after the handshake, so the last connection is asked only now; it
        has none if it is still in its handshake, or never got through it."""
        try:
            found = self._last.session if self._last is not None else None
        except ValueError:  # half-way through the handshake there is one that is not whole
            found = None
        if found is not None and found.has_ticket:
            self._session = found
        return self._session


def build_contexts(replicas: Iterable[ReplicaConfig]) -> dict[str, ssl.SSLContext]:
    """A context for each https:// replica, by id. Make them before forking.

    Raises ConfigError when a certificate or key cannot be read.
    """
    contexts: dict[str, ssl.SSLContext] = {}
    for config in replicas:
        if config.address.tls:
            contexts[config.replica.id] = _build(config, config.tls or ReplicaTlsConfig())
    return contexts


def _build(config: ReplicaConfig, tls: ReplicaTlsConfig) -> ssl.SSLContext:
    context = ResumingContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_ALPN[config.protocol])
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        if tls.ca is not None:
            context.load_verify_locations(cafile=tls.ca)
        elif tls.verify:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        if tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        files: Any = ", ".join(filter(None, (tls.ca, tls.certificate, tls.key)))
        raise ConfigError(
            f"the TLS files of replica {config.replica.id} ({files}) do not load: {error}"
        ) from error
    return context


def _no_password() -> str:
    """Asked for only when a key is encrypted; without this OpenSSL would prompt the terminal."""
    raise ValueError("the key is encrypted")
