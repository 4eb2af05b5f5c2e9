"""The section `listen.tls`: certificates, ticket keys, certificates of clients."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, Self

from msgspec import Meta

from core.section import Contradictions, FilePath, Secret, Section
from proxy.tls.ticket_keys import ROTATION_S

_HOST = re.compile(r"(\*\.)?([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)(\.[a-z0-9_-]{1,63})*")


class HostName(str):
    """A DNS name in lower case, or `*.` and one; international ones as `xn--`."""

    __slots__ = ()
    expected: ClassVar[str] = "a host name like `api.example.com` or `*.example.com`"
    schema: ClassVar[dict[str, object]] = {"type": "string", "minLength": 1}

    @classmethod
    def from_text(cls, text: str, base: str) -> Self:
        name = text.lower()
        if len(name) > 253 or not _HOST.fullmatch(name):
            raise ValueError(f'expected {cls.expected}, got "{text}"')
        return cls(name)


class CertificateConfig(Section):
    """PEM files of a certificate (with its chain) and of its key. `names`: the host names that it
    is shown for, all that it covers if none are given."""

    certificate: FilePath
    key: FilePath
    names: tuple[HostName, ...] = ()


class TicketConfig(Section):
    """The keys of session tickets: `files` of 80 bytes (name 16, HMAC 32, AES 32), the first of
    which encrypts, or a `secret` that all hosts share and from which a key is derived every
    `rotation_s`. With neither, the gateway makes a secret of its own at its start."""

    files: tuple[FilePath, ...] = ()
    secret: Secret | None = None
    rotation_s: Annotated[float, Meta(ge=3600, le=604_800)] = ROTATION_S

    def __post_init__(self) -> None:
        if self.files and self.secret is not None:
            raise ValueError("give `files` or `secret`, not both")
        if 0 < len(self.files) < 3:
            raise Contradictions(
                [
                    (
                        ".files",
                        f"{len(self.files)} given, and 3 are needed: the key that encrypts, the "
                        "one before it and the one to come",
                    )
                ]
            )


class ClientCertificateConfig(Section):
    """Certificates of clients. `ca`: PEM file of the authorities that may issue them. `required`
    on requests to `names` (to all hosts if none are given); `optional`: taken where offered."""

    ca: FilePath
    mode: Literal["optional", "required"] = "required"
    names: tuple[HostName, ...] = ()

    def __post_init__(self) -> None:
        if self.names and self.mode == "optional":
            raise ValueError(
                "`names` says where a certificate is required, `mode` that it never is"
            )


class TlsConfig(Section):
    """One `certificate` and `key`, or several `certificates`, the first of which is shown to
    clients that name no host of another one."""

    certificate: FilePath | None = None
    key: FilePath | None = None
    certificates: tuple[CertificateConfig, ...] = ()
    minimum_version: Literal["1.2", "1.3"] = "1.3"
    tickets: TicketConfig = TicketConfig()
    client_certificates: ClientCertificateConfig | None = None

    def __post_init__(self) -> None:
        one = self.certificate is not None or self.key is not None
        if one and self.certificates:
            raise ValueError("give `certificate` and `key`, or `certificates`, not both")
        if not one and not self.certificates:
            raise ValueError("give `certificate` and `key`, or `certificates`")
        if one and (self.certificate is None or self.key is None):
            missing = "certificate" if self.certificate is None else "key"
            raise ValueError(f"missing key `{missing}`")

    @property
    def pairs(self) -> tuple[CertificateConfig, ...]:
        """Every certificate, however it was given."""
        if self.certificate is None or self.key is None:
            return self.certificates
        return (CertificateConfig(certificate=self.certificate, key=self.key),)

    def place_of(self, index: int) -> str:
        """The path of a pair in the configuration."""
        return f"$.listen.tls.certificates[{index}]" if self.certificates else "$.listen.tls"
