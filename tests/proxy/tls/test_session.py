"""What is known of one connection, and how a client's certificate is described."""

from __future__ import annotations

import ssl
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from authority import Authority
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from memory_tls import Connection

from proxy.tls.config import ClientCertificateConfig, TlsConfig
from proxy.tls.server import ServerTls
from proxy.tls.session import describe, tls_session
from proxy.tls.ticket_keys import OPEN


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def test_a_connection_without_tls_has_none() -> None:
    assert tls_session(cast(Any, SimpleNamespace(get_extra_info=lambda name: None))) is None


def test_a_resumed_session_brings_the_certificate_along(authority: Authority) -> None:
    clients = ClientCertificateConfig(ca=authority.path)
    pair = authority.issue("a.example").config()
    tls = ServerTls(TlsConfig(certificates=(pair,), client_certificates=clients), time.time)
    shown = authority.issue("c")
    client = shown.present(authority.client_context())
    first = Connection(client, tls.context)
    again = Connection(client, tls.context, session=first.session)
    encoded = ssl.PEM_cert_to_DER_cert(Path(shown.certificate).read_text())
    for connection, resumed in [(first, False), (again, True)]:
        session = connection.tls_session()
        assert (session.sni, session.resumed) == ("a.example", resumed)
        assert session.peer_certificate == encoded
        assert session.policy != OPEN


def test_without_client_certificates_the_policy_is_open(authority: Authority) -> None:
    tls = ServerTls(TlsConfig(certificates=(authority.issue("a.example").config(),)), time.time)
    session = Connection(authority.client_context(), tls.context).tls_session()
    assert session.policy == OPEN
    assert session.peer_certificate is None


def made(*extensions: x509.ExtensionType) -> x509.Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([])
    pair = Authority.__new__(Authority)
    pair._name = name
    builder = pair._builder(name, key, -1, 1)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(key, hashes.SHA256())


def test_a_certificate_without_names() -> None:
    who = describe(made(), b"")
    assert (who.subject, who.dns_names, who.uri_names) == ("", (), ())


def test_names_that_cannot_be_read() -> None:
    names = x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, b"\x30\x03\x82\x01\xff")
    with pytest.raises(ValueError, match="parsing asn1"):
        describe(made(names), b"")
