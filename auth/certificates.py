"""Callers who are known by the certificate of their connection (mTLS). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from auth.key_config import QuotaConfig, priority_fault
from core.exchange import ClientCertificate
from core.principal import Principal, Quota
from core.section import Contradictions, Section

_NAMES = ("subject", "dns", "uri", "fingerprint")


class CertificateConfig(Section):
    """Who shows a certificate with this name: exactly one of `subject` (RFC 4514), `dns`, `uri`
    (subject alternative names) and `fingerprint` (SHA-256 in hex).

    In the first three `*` stands for any characters but a dot, a comma and a slash. `user` None:
    the name itself. `models`: None means all.
    """

    tenant: str
    subject: str | None = None
    dns: str | None = None
    uri: str | None = None
    fingerprint: str | None = None
    user: str | None = None
    tier: str = ""
    organisation: str = ""
    groups: tuple[str, ...] = ()
    models: tuple[str, ...] | None = None
    limits: dict[str, QuotaConfig] = {}  # noqa: RUF012 - copied for each
    priority: int = 0

    def __post_init__(self) -> None:
        if sum(getattr(self, name) is not None for name in _NAMES) != 1:
            raise ValueError("expected exactly one of `subject`, `dns`, `uri` and `fingerprint`")
        if not self.tenant:
            raise ValueError("expected a `tenant` that is not empty")
        if self.fingerprint is not None and not re.fullmatch("[0-9a-fA-F]{64}", self.fingerprint):
            raise ValueError("expected 64 hex digits as `fingerprint`")
        if fault := priority_fault(self.priority):
            raise Contradictions([(".priority", fault)])


class CertificateCallers:
    """The first rule that fits a certificate says who shows it."""

    def __init__(self, rules: Iterable[CertificateConfig]) -> None:
        self._rules = [(rule, _pattern(rule)) for rule in rules]

    def __repr__(self) -> str:
        return f"<CertificateCallers {len(self._rules)} rules>"

    def find(self, certificate: ClientCertificate, now: float) -> Principal | None:
        """Whose certificate it is; None: nobody's, or it has expired. `now`: Unix seconds."""
        if now >= certificate.not_after:
            return None
        for rule, pattern in self._rules:
            for name in _shown(rule, certificate):
                if pattern.fullmatch(name):
                    return _principal(rule, name)
        return None


def _pattern(rule: CertificateConfig) -> re.Pattern[str]:
    if rule.fingerprint is not None:
        return re.compile(rule.fingerprint.lower())
    text = rule.subject or rule.dns or rule.uri or ""
    flags = re.IGNORECASE if rule.dns is not None else re.NOFLAG
    return re.compile("[^.,/]+".join(map(re.escape, text.split("*"))), flags)


def _shown(rule: CertificateConfig, certificate: ClientCertificate) -> Sequence[str]:
    if rule.subject is not None:
        return (certificate.subject,)
    if rule.dns is not None:
        return certificate.dns_names
    if rule.uri is not None:
        return certificate.uri_names
    return (certificate.fingerprint.lower(),)


def _principal(rule: CertificateConfig, name: str) -> Principal:
    return Principal(
        tenant=rule.tenant,
        subject=name if rule.user is None else rule.user,
        tier=rule.tier,
        models=None if rule.models is None else frozenset(rule.models),
        organisation=rule.organisation,
        limits=tuple((each, Quota(own.limit, own.burst)) for each, own in rule.limits.items()),
        groups=frozenset(rule.groups),
        priority=rule.priority,
    )
