"""Certificates for tests: an authority, and what it issues to servers and clients, as PEM files."""

from __future__ import annotations

import datetime
import itertools
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from core.section import FilePath
from proxy.tls.config import CertificateConfig, HostName

DAY = datetime.timedelta(days=1)
_numbers = itertools.count()


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key."""

    certificate: FilePath
    key: FilePath

    def config(self, *names: str) -> CertificateConfig:
        return CertificateConfig(
            certificate=self.certificate, key=self.key, names=tuple(map(HostName, names))
        )

    def present(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.load_cert_chain(self.certificate, self.key)
        return context


class Authority:
    """Issues certificates into `folder`; its own is `path`. Times are days from now."""

    def __init__(self, folder: Path, *, name: str = "authority", days: float = 30) -> None:
        self.folder = folder
        self.path = FilePath(folder / f"{name}-{next(_numbers)}.pem")
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        certificate = (
            self._builder(self._name, self._key, -60, days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        Path(self.path).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        *names: str,
        uris: Sequence[str] = (),
        days: float = 20,
        since: float = -1,
        kind: str = "ec",
        subject: str = "subject",
    ) -> Pair:
        key: Any = (
            rsa.generate_private_key(public_exponent=65537, key_size=2048)
            if kind == "rsa"
            else ec.generate_private_key(ec.SECP256R1())
        )
        builder = self._builder(_name(subject), key, since, days)
        found = [*map(x509.DNSName, names), *map(x509.UniformResourceIdentifier, uris)]
        if found:
            builder = builder.add_extension(x509.SubjectAlternativeName(found), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        number = next(_numbers)
        pair = Pair(
            FilePath(self.folder / f"{number}-cert.pem"),
            FilePath(self.folder / f"{number}-key.pem"),
        )
        Path(pair.certificate).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        Path(pair.key).write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair

    def client_context(self) -> ssl.SSLContext:
        """Of a client that trusts this authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.path)
        return context

    def _builder(
        self, subject: x509.Name, key: Any, since: float, days: float
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now() + since * DAY)
            .not_valid_after(now() + days * DAY)
        )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
