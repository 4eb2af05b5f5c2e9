"""The server's TLS context, made before the workers are forked.

OpenSSL makes the key of its session tickets when the context is made, so workers forked later,
and those that replace dead ones, all accept each other's tickets: resumption does not depend on
which worker a client meets. TLS 1.3 only unless configured otherwise; Python offers no early
data (0-RTT), so no request can be replayed.
"""

from __future__ import annotations

import datetime
import operator
import ssl
from typing import NoReturn, Protocol

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from core.errors import ConfigError

ALPN = ("http/1.1",)
_TLS12_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class DirectSSLObject(ssl.SSLObject):
    """`read` and `write` are OpenSSL's own: the event loop asks for both once a connection and
    calls them for every chunk, each time without the Python frame of the standard library's."""

    read = property(operator.attrgetter("_sslobj.read"))
    write = property(operator.attrgetter("_sslobj.write"))


class TlsSettings(Protocol):
    """PEM files of the certificate chain and of its key, and the lowest version."""

    @property
    def certificate(self) -> str: ...

    @property
    def key(self) -> str: ...

    @property
    def minimum_version(self) -> str: ...


def server_context(settings: TlsSettings, now: datetime.datetime) -> ssl.SSLContext:
    """A context that has shaken hands with itself. `now` is aware wall-clock time.

    Raises ConfigError with one sentence: file missing or unreadable, not PEM, key that does not
    belong to the certificate, certificate not valid at `now`.
    """
    certificate = _certificate(settings.certificate)
    _check_key(settings, certificate)
    _check_dates(settings.certificate, certificate, now)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslobject_class = DirectSSLObject
    context.minimum_version = _VERSIONS[settings.minimum_version]
    context.options |= (
        ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    )
    context.set_ciphers(_TLS12_CIPHERS)
    context.set_alpn_protocols(list(ALPN))
    try:
        # Without a password OpenSSL would ask for one on the terminal.
        context.load_cert_chain(settings.certificate, settings.key, password=_no_password)
        _shake_hands(context)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"the certificate {settings.certificate} with the key {settings.key} does not work: "
            f"{error}"
        ) from error
    return context


def days_left(settings: TlsSettings, now: datetime.datetime) -> float:
    """Days until the certificate expires."""
    expires_at = _certificate(settings.certificate).not_valid_after_utc
    return (expires_at - now).total_seconds() / 86_400


def _certificate(path: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificates(_read(path, "certificate"))[0]
    except ValueError as error:
        raise ConfigError(f"the certificate {path} holds no certificate in PEM form") from error


def _check_key(settings: TlsSettings, certificate: x509.Certificate) -> None:
    pem = _read(settings.key, "key")
    try:
        key = serialization.load_pem_private_key(pem, None)
    except TypeError as error:
        raise ConfigError(
            f"the key {settings.key} is encrypted; give one without a pass phrase"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"the key {settings.key} holds no private key in PEM form") from error
    if key.public_key() != certificate.public_key():
        raise ConfigError(
            f"the key {settings.key} does not belong to the certificate {settings.certificate}; "
            "give the key that the certificate was made for"
        )


def _check_dates(path: str, certificate: x509.Certificate, now: datetime.datetime) -> None:
    starts_at, expires_at = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now >= expires_at:
        raise ConfigError(f"the certificate {path} expired on {expires_at:%Y-%m-%d %H:%M} UTC")
    if now < starts_at:
        raise ConfigError(f"the certificate {path} is valid from {starts_at:%Y-%m-%d %H:%M} UTC")


def _read(path: str, what: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"cannot read the {what} {path}: {error.strerror}") from error


def _no_password() -> NoReturn:
    raise OSError("it is encrypted")


def _shake_hands(context: ssl.SSLContext) -> None:
    """One handshake in memory, so that what cannot work fails now and not at the first client."""
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    client_context.verify_mode = ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server)
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
            return
    raise ssl.SSLError("the handshake does not end")
