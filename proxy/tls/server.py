"""TLS towards clients: one context that connections begin with, others that they are switched to.

The outer context is made before the workers are forked and stays for good: listening sockets know
no other. It holds what concerns every connection, its ticket keys above all. When the client has
named its host, the connection is switched to the inner context with the right certificate. Inner
contexts are swapped whole: a new certificate is shown from the next handshake on, and no handshake
sees half of a change.

TLS 1.3 only unless configured otherwise. Python offers no early data (0-RTT), so no request can be
replayed.
"""

from __future__ import annotations

import datetime
import os
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from core.clock import Clock
from core.errors import ConfigError
from core.exchange import Request
from core.metrics import Metrics
from proxy.tls.admission import ClientRule, HostRules
from proxy.tls.certificates import (
    Authorities,
    HostTable,
    ServerCertificate,
    covers,
    load_server_certificate,
    read,
)
from proxy.tls.config import CertificateConfig, TicketConfig, TlsConfig
from proxy.tls.context import MemoryClient, ServerContext, load_chain, new_context
from proxy.tls.meters import TlsMeters
from proxy.tls.session import TlsSession
from proxy.tls.ticket_keys import OPEN, DerivedKeys, FileKeys, TicketKey, TicketKeys
from proxy.tls.ticket_ring import OpenSsl, TicketRing, Unreachable
from proxy.tls.ticket_trial import try_ring

ALPN = ("h2", "http/1.1")
HTTP1_ALPN = ("http/1.1",)
TicketSource = Literal["files", "secret", "memory", "openssl"]
_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_EXPIRES_SOON_DAYS = 14
_TICKETS = 2  # for each full handshake, as OpenSSL has it


@dataclass(frozen=True, slots=True)
class Staged:
    """Everything that `ServerTls.commit` puts in place. `fingerprints` are those of the
    certificates; `expiries`: places in the configuration, and when what is there expires."""

    contexts: HostTable[ServerContext]
    inner: tuple[ServerContext, ...]
    fingerprints: frozenset[bytes]
    source: TicketSource
    keys: TicketKeys
    policy: bytes
    rules: HostRules | None
    minimum_version: ssl.TLSVersion
    expiries: tuple[tuple[str, datetime.datetime], ...]

    def warnings(self, now: datetime.datetime) -> Iterator[str]:
        """What expires soon."""
        for place, expires_at in self.expiries:
            left = (expires_at - now).total_seconds() / 86_400
            if left < _EXPIRES_SOON_DAYS:
                yield f"{place}: " + (f"expires in {left:.1f} days" if left > 0 else "expired")


class ServerTls:
    """`context` is for listening sockets. `rules` is None when every request may come over every
    connection. `fault` says why tickets have OpenSSL's own key; empty when they have not.

    `wall_clock`: Unix seconds. `secret`: what ticket keys are derived from where the settings give
    none. Raises ConfigError with one line for each fault.
    """

    def __init__(
        self,
        settings: TlsConfig,
        wall_clock: Clock,
        alpn: Sequence[str] = ALPN,
        *,
        secret: bytes = b"",
    ) -> None:
        self._clock = wall_clock
        self._secret = secret or os.urandom(32)
        self._meters: TlsMeters | None = None
        self._in_force: tuple[frozenset[bytes], bytes] = frozenset(), OPEN
        self._staged = staged = self.stage(settings, alpn)
        self.rules: HostRules | None = None
        self.fault = ""
        self.context = new_context(alpn, staged.minimum_version)
        self.context.sni_callback = self._switch
        try:
            openssl = OpenSsl()
            try_ring(openssl, settings.pairs[0])
            self.context.ring = TicketRing(openssl, wall_clock)
            self.context.ring.install(self.context)
        except (Unreachable, ssl.SSLError) as error:
            self.fault = str(error)
        self.commit(staged)

    def __repr__(self) -> str:
        return f"<ServerTls {self._staged.contexts!r} tickets={self.ticket_source}>"

    def stage(self, settings: TlsConfig, alpn: Sequence[str] = ALPN) -> Staged:
        """Load and check everything, without any effect. Raises ConfigError. What is in force
        already may have expired: `warnings` tell."""
        fingerprints, policy = self._in_force
        now = datetime.datetime.fromtimestamp(self._clock(), datetime.UTC)
        faults: list[str] = []
        authorities = None
        if settings.client_certificates is not None:
            try:
                authorities = Authorities.load(
                    settings.client_certificates.ca, now, in_force=policy
                )
            except ConfigError as error:
                faults.append(f"$.listen.tls.client_certificates.ca: {error}")
        loaded: list[tuple[ServerCertificate, ServerContext]] = []
        for index, pair in enumerate(settings.pairs):
            try:
                certificate = load_server_certificate(
                    pair, now, default=index == 0, in_force=fingerprints
                )
                empty = new_context(alpn, _VERSIONS[settings.minimum_version])
                loaded.append((certificate, _filled(empty, pair, authorities)))
            except ConfigError as error:
                faults.append(f"{settings.place_of(index)}: {error}")
        try:
            source, keys = self._keys(settings.tickets)
        except ConfigError as error:
            faults.append(f"$.listen.tls.tickets: {error}")
        if not faults:
            faults += _uncovered_hosts(settings, [certificate for certificate, _ in loaded])
        if faults:
            raise ConfigError("\n".join(faults))
        contexts, numbers = HostTable(loaded[0][1]), HostTable(0)
        for index, (certificate, context) in enumerate(loaded):
            contexts.add(certificate.names, context)
            numbers.add(certificate.names, index)
        return Staged(
            contexts=contexts,
            inner=tuple(context for _, context in loaded),
            fingerprints=frozenset(certificate.fingerprint for certificate, _ in loaded),
            source=source,
            keys=keys,
            policy=OPEN if authorities is None else authorities.policy,
            rules=_rules(settings, numbers, authorities),
            minimum_version=_VERSIONS[settings.minimum_version],
            expiries=tuple(_expiries(settings, [c for c, _ in loaded], authorities)),
        )

    def commit(self, staged: Staged) -> None:
        """Use what was staged from now on, for handshakes that begin and for requests that end."""
        outer = self.context
        asks = staged.policy != OPEN
        outer.minimum_version = staged.minimum_version
        outer.verify_mode = ssl.CERT_OPTIONAL if asks else ssl.CERT_NONE
        if outer.ring is not None:
            outer.ring.use(staged.keys, staged.policy, outer, staged.inner)
            for context in staged.inner:
                context.ring = outer.ring
        elif asks:
            # OpenSSL's own key would open tickets that were made when other authorities counted.
            outer.options |= ssl.OP_NO_TICKET
            outer.num_tickets = 0
        else:
            outer.options &= ~ssl.OP_NO_TICKET
            outer.num_tickets = _TICKETS
        self._staged = staged
        self._in_force = staged.fingerprints, staged.policy
        self.rules = staged.rules
        if self._meters is not None:
            self._meters.tickets_from(self.ticket_source)

    def use_metrics(self, metrics: Metrics) -> None:
        """Count in a worker's own metrics from now on."""
        self._meters = self.context.meters = TlsMeters(metrics)
        self._meters.tickets_from(self.ticket_source)

    def admit(self, session: TlsSession | None, request: Request) -> None:
        """Let a request pass and note its client certificate, or raise GatewayError (421, 403)."""
        if self.rules is not None:
            self.rules.admit(session, request, self._clock())

    @property
    def ticket_source(self) -> TicketSource:
        """Where the keys of tickets come from."""
        return "openssl" if self.fault else self._staged.source

    def warnings(self, staged: Staged | None = None) -> list[str]:
        """What needs care soon, or works less well than it could, one sentence each; of what is
        only staged, if it is given."""
        now = datetime.datetime.fromtimestamp(self._clock(), datetime.UTC)
        found = list((staged or self._staged).warnings(now))
        if self.fault:
            found.append(
                "$.listen.tls.tickets: session tickets have OpenSSL's own key, which no other "
                f"gateway shares and which is never changed: {self.fault}"
            )
        return found

    def _switch(self, connection: ssl.SSLObject, name: str | None, context: object) -> None:
        """Called by OpenSSL in every handshake; `name` is None when the client names no host."""
        if name is not None:
            name = name.lower().removesuffix(".")
        connection.sni = name  # type: ignore[attr-defined]
        connection.context = self._staged.contexts.find(name)

    def _keys(self, settings: TicketConfig) -> tuple[TicketSource, TicketKeys]:
        if settings.files:
            return "files", FileKeys([_ticket_key(path) for path in settings.files])
        if settings.secret is None:
            return "memory", DerivedKeys(self._secret, settings.rotation_s)
        secret = settings.secret.reveal_strong().encode()
        return "secret", DerivedKeys(secret, settings.rotation_s)


def _filled(
    context: ServerContext, pair: CertificateConfig, authorities: Authorities | None
) -> ServerContext:
    """The context with its certificate, after a handshake with itself: what cannot work fails now
    and not at the first client."""
    try:
        load_chain(context, pair)
        if authorities is not None:
            context.policy = authorities.policy
            context.verify_mode = ssl.CERT_OPTIONAL
            context.load_verify_locations(cadata=authorities.pem())
        MemoryClient().shake_hands(context)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"the certificate {pair.certificate} with the key {pair.key} does not work: {error}"
        ) from error
    return context


def _ticket_key(path: str) -> TicketKey:
    try:
        return TicketKey.from_bytes(read(path, "ticket key"))
    except ValueError as error:
        raise ConfigError(f"the ticket key {path} {error}, as `openssl rand 80` prints") from error


def _rules(
    settings: TlsConfig, numbers: HostTable[int], authorities: Authorities | None
) -> HostRules | None:
    """None when there is nothing to tell hosts apart by."""
    clients = None
    if settings.client_certificates is not None and authorities is not None:
        asked = settings.client_certificates
        required = HostTable(asked.mode == "required" and not asked.names)
        required.add(asked.names, True)
        clients = ClientRule(authorities, required)
    if clients is None and len(settings.pairs) == 1:
        return None
    return HostRules(numbers, clients)


def _uncovered_hosts(
    settings: TlsConfig, certificates: Sequence[ServerCertificate]
) -> Iterator[str]:
    """Hosts that need a client certificate but have none of ours."""
    names = [name for certificate in certificates for name in certificate.names]
    asked = settings.client_certificates
    for index, name in enumerate(asked.names if asked is not None else ()):
        if not covers(names, name):
            yield (
                f"$.listen.tls.client_certificates.names[{index}]: no certificate covers `{name}`; "
                f"names: {', '.join(names) or 'none'}"
            )


def _expiries(
    settings: TlsConfig, certificates: Sequence[ServerCertificate], authorities: Authorities | None
) -> Iterator[tuple[str, datetime.datetime]]:
    for index, certificate in enumerate(certificates):
        yield f"{settings.place_of(index)}.certificate", certificate.expires_at
    if authorities is not None:
        yield "$.listen.tls.client_certificates.ca", authorities.expires_at
