"""PEM files to certificates that can be used, and which of them a host name means.

Everything here raises ConfigError with one sentence: file missing or unreadable, not PEM, key that
does not belong to the certificate, not valid now.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization

from core.errors import ConfigError
from proxy.tls.config import CertificateConfig

T = TypeVar("T")
E = TypeVar("E", bound=x509.ExtensionType)


class HostTable(Generic[T]):
    """What each host name stands for. A name is looked up as it is, then as `*.` and its parent
    (one label, RFC 9525 section 6.3), then there is the default. What was added first stays."""

    __slots__ = ("_default", "_names")

    def __init__(self, default: T) -> None:
        self._default = default
        self._names: dict[str, T] = {}

    def __repr__(self) -> str:
        return f"<HostTable {' '.join(self._names)}>"

    def add(self, names: Iterable[str], value: T) -> None:
        for name in names:
            self._names.setdefault(name, value)

    def find(self, name: str | None) -> T:
        """`name` in lower case."""
        if name is None:
            return self._default
        found = self._names.get(name)
        if found is None:
            found = self._names.get("*." + name.partition(".")[2], self._default)
        return found


def covers(names: Iterable[str], name: str) -> bool:
    """Whether one of `names` is `name`, or a wildcard of its parent."""
    return name in names or "*." + name.partition(".")[2] in names


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """One certificate of ours. `names`: the hosts that it is shown for; `fingerprint`: SHA-256."""

    path: str
    names: tuple[str, ...]
    expires_at: datetime.datetime
    fingerprint: bytes


def load_server_certificate(
    config: CertificateConfig,
    now: datetime.datetime,
    *,
    default: bool,
    in_force: Collection[bytes] = (),
) -> ServerCertificate:
    """Read and check the certificate and its key. `default`: it is also shown without a name. One
    that is `in_force` (fingerprints) may have expired meanwhile: refusing it would change nothing,
    and keep every other change away."""
    path = config.certificate
    certificate = _certificates(path, "certificate")[0]
    _check_key(config, certificate)
    fingerprint = certificate.fingerprint(hashes.SHA256())
    if fingerprint not in in_force:
        _check_dates(path, certificate, now)
    covered = _dns_names(certificate)
    if missing := [name for name in config.names if not covers(covered, name)]:
        raise ConfigError(
            f"the certificate {path} does not cover {', '.join(missing)}; it covers "
            f"{', '.join(covered) or 'no name'}"
        )
    names = tuple(config.names) or covered
    if not names and not default:
        raise ConfigError(
            f"the certificate {path} covers no DNS name, so that no client could ask for it; only "
            "the first certificate may be so"
        )
    return ServerCertificate(path, names, certificate.not_valid_after_utc, fingerprint)


class Authorities:
    """The certificates that may issue those of clients. `policy` is the same for the same set of
    certificates, on every host."""

    __slots__ = ("_certificates", "path", "policy")

    def __init__(self, path: str, certificates: Iterable[x509.Certificate]) -> None:
        self.path = path
        self._certificates = tuple(certificates)
        found = {c.public_bytes(serialization.Encoding.DER) for c in self._certificates}
        self.policy = hashlib.sha256(b"".join(sorted(found))).digest()

    def __repr__(self) -> str:
        return f"<Authorities {self.path} {len(self._certificates)}>"

    @classmethod
    def load(cls, path: str, now: datetime.datetime, *, in_force: bytes = b"") -> Authorities:
        """Those whose `policy` is `in_force` may all have expired meanwhile."""
        found = _certificates(path, "CA file")
        for certificate in found:
            if not _may_issue(certificate):
                raise ConfigError(
                    f"the CA file {path} holds a certificate of no authority: "
                    f"{certificate.subject.rfc4514_string()}"
                )
        loaded = cls(path, found)
        latest = max(certificate.not_valid_after_utc for certificate in found)
        if latest <= now and loaded.policy != in_force:
            raise ConfigError(
                f"every certificate of the CA file {path} has expired, the last one on "
                f"{latest:%Y-%m-%d %H:%M} UTC"
            )
        return loaded

    def pem(self) -> str:
        """All of them, as OpenSSL takes them."""
        encoded = (c.public_bytes(serialization.Encoding.PEM) for c in self._certificates)
        return b"".join(encoded).decode("ascii")

    @property
    def expires_at(self) -> datetime.datetime:
        """When the first of them expires."""
        return min(certificate.not_valid_after_utc for certificate in self._certificates)

    def issuer_of(self, leaf: x509.Certificate) -> x509.Certificate | None:
        """Which of them signed `leaf` itself; None when a certificate in between did, or none."""
        for certificate in self._certificates:
            if certificate.subject == leaf.issuer:
                try:
                    leaf.verify_directly_issued_by(certificate)
                except (InvalidSignature, ValueError, TypeError):
                    continue
                return certificate
        return None


def _certificates(path: str, what: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(read(path, what))
    except ValueError as error:
        raise ConfigError(f"the {what} {path} holds no certificate in PEM form") from error


def _dns_names(certificate: x509.Certificate) -> tuple[str, ...]:
    names = _extension(certificate, x509.SubjectAlternativeName)
    if names is None:
        return ()
    return tuple(name.lower() for name in names.get_values_for_type(x509.DNSName))


def _may_issue(certificate: x509.Certificate) -> bool:
    constraints = _extension(certificate, x509.BasicConstraints)
    return constraints.ca if constraints is not None else certificate.version == x509.Version.v1


def _extension(certificate: x509.Certificate, kind: type[E]) -> E | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None
    except ValueError as error:
        subject = certificate.subject.rfc4514_string()
        raise ConfigError(f"the extensions of the certificate {subject} are broken") from error


def _check_key(config: CertificateConfig, certificate: x509.Certificate) -> None:
    pem = read(config.key, "key")
    try:
        key = serialization.load_pem_private_key(pem, None)
    except TypeError as error:
        raise ConfigError(
            f"the key {config.key} is encrypted; give one without a pass phrase"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"the key {config.key} holds no private key in PEM form") from error
    if key.public_key() != certificate.public_key():
        raise ConfigError(
            f"the key {config.key} does not belong to the certificate {config.certificate}; "
            "give the key that the certificate was made for"
        )


def _check_dates(path: str, certificate: x509.Certificate, now: datetime.datetime) -> None:
    starts_at, expires_at = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now >= expires_at:
        raise ConfigError(f"the certificate {path} expired on {expires_at:%Y-%m-%d %H:%M} UTC")
    if now < starts_at:
        raise ConfigError(f"the certificate {path} is valid from {starts_at:%Y-%m-%d %H:%M} UTC")


def read(path: str, what: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"cannot read the {what} {path}: {error.strerror}") from error
