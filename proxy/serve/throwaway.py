"""Throw-away identities for the demo and for trying things out: an authority, a certificate for
this machine, a signing key with its key set, and tokens. Never for production."""

from __future__ import annotations

import datetime
import ipaddress
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

_LIFETIME = datetime.timedelta(days=30)


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """PEM files: the authority to trust, the certificate and its key."""

    authority: Path
    certificate: Path
    key: Path


def make_certificate(folder: Path) -> CertificateFiles:
    """A certificate for localhost, 127.0.0.1 and ::1, signed by an authority made for it."""
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = _name("Headrace throw-away authority")
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    authority = (
        _builder(authority_name, authority_name, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    names = [
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.IPAddress(ipaddress.ip_address("::1")),
    ]
    certificate = (
        _builder(_name("localhost"), authority_name, key)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    files = CertificateFiles(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    files.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files.key.touch(mode=0o600)
    files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


class Issuer:
    """Signs tokens with RS256 and shows its keys as a key set (RFC 7517)."""

    def __init__(self, issuer: str, audience: str) -> None:
        self.issuer = issuer
        self.audience = audience
        self._keys: dict[str, rsa.RSAPrivateKey] = {}
        self._kid = ""
        self.rotate()

    def __repr__(self) -> str:
        return f"<Issuer {self.issuer} kid={self._kid}>"

    def rotate(self) -> str:
        """Sign with a new key from now on; returns its id."""
        self._kid = f"key-{len(self._keys) + 1}"
        self._keys[self._kid] = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        return self._kid

    def key_set(self) -> bytes:
        """The JWKS document."""
        keys = []
        for kid, key in self._keys.items():
            jwk: dict[str, Any] = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
            keys.append({**jwk, "kid": kid, "use": "sig", "alg": "RS256"})
        return json.dumps({"keys": keys}).encode()

    def token(self, tenant: str, lifetime_s: float = 86_400.0, **claims: Any) -> str:
        """A token for `tenant`; `claims` add to or replace the usual ones."""
        now = int(time.time())
        payload = {
            "iss": self.issuer,
            "aud": self.audience,
            "sub": f"{tenant}-user",
            "iat": now,
            "exp": now + int(lifetime_s),
            "tenant": tenant,
            **claims,
        }
        return jwt.encode(payload, self._keys[self._kid], "RS256", headers={"kid": self._kid})


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + _LIFETIME)
    )
