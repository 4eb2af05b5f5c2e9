"""The TLS context: what it refuses to be made of, what it speaks, and whose tickets it takes."""

from __future__ import annotations

import datetime
import os
import signal
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from core.errors import ConfigError
from core.section import FilePath
from proxy.config import TlsConfig
from proxy.tls import days_left, server_context

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
Run = Callable[..., Any]


def make_certificate(
    folder: Path, start: datetime.datetime = NOW - DAY, days: float = 30, password: bytes = b""
) -> TlsConfig:
    """A self-signed certificate for localhost and its key, as PEM files in `folder`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + days * DAY)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    protection = (
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption()
    )
    folder.mkdir(exist_ok=True)
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection)
    )
    return TlsConfig(certificate=FilePath(paths[0]), key=FilePath(paths[1]))


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> TlsConfig:
    return make_certificate(tmp_path_factory.mktemp("tls"))


def client_context(settings: TlsConfig, highest: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.certificate)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # which Python 3.13 sets; ours is self-signed
    context.set_alpn_protocols(["h2", "http/1.1"])
    if highest is not None:
        context.maximum_version = highest
    return context


class Client:
    """A TLS client that asks its worker who it is, and keeps the session."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context
        self.session: ssl.SSLSession | None = None
        self.reused = False

    def ask(self, port: int) -> tuple[str, str]:
        """The index and pid of the worker behind `port`."""
        with (
            socket.create_connection(("127.0.0.1", port), 10) as plain,
            self.context.wrap_socket(
                plain, server_hostname="localhost", session=self.session
            ) as secure,
        ):
            self.reused = bool(secure.session_reused)
            secure.sendall(b"who\n")
            index, pid = secure.recv(100).split()
            # Tickets come after the handshake (RFC 8446 section 4.6.1): only now are they here.
            self.session = secure.session
            return index.decode(), pid.decode()


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_the_context_is_strict(settings: TlsConfig, version: Any) -> None:
    context = server_context(
        TlsConfig(certificate=settings.certificate, key=settings.key, minimum_version=version), NOW
    )
    assert context.minimum_version == ssl.TLSVersion[f"TLSv1_{version[-1]}"]
    assert context.options & ssl.OP_NO_COMPRESSION
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.num_tickets > 0
    assert not context.options & ssl.OP_NO_TICKET


def test_days_left(settings: TlsConfig) -> None:
    assert 28.9 < days_left(settings, NOW) < 29.1


def broken(settings: TlsConfig, tmp_path: Path, how: str) -> TlsConfig:
    certificate, key = Path(settings.certificate), Path(settings.key)
    other = make_certificate(tmp_path / "other")
    (tmp_path / "text").write_text("not PEM\n")
    match how:
        case "no certificate":
            certificate = tmp_path / "none.pem"
        case "no key":
            key = tmp_path / "none.pem"
        case "folder":
            key = tmp_path
        case "certificate is text":
            certificate = tmp_path / "text"
        case "key is text":
            key = tmp_path / "text"
        case "swapped":
            certificate, key = key, certificate
        case "other key":
            key = Path(other.key)
        case "encrypted":
            return make_certificate(tmp_path / "locked", password=b"secret")
        case "expired":
            return make_certificate(tmp_path / "old", start=NOW - 40 * DAY)
        case "not yet valid":
            return make_certificate(tmp_path / "new", start=NOW + DAY)
    return TlsConfig(certificate=FilePath(certificate), key=FilePath(key))


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("no certificate", r"cannot read the certificate .*none.pem: No such file"),
        ("no key", r"cannot read the key .*none.pem: No such file"),
        ("folder", r"cannot read the key .*: Is a directory"),
        ("certificate is text", r"the certificate .*text holds no certificate in PEM form"),
        ("key is text", r"the key .*text holds no private key in PEM form"),
        ("swapped", r"the certificate .*key.pem holds no certificate"),
        ("other key", r"the key .* does not belong to the certificate .*cert.pem"),
        ("encrypted", r"the key .* is encrypted; give one without a pass phrase"),
        ("expired", r"the certificate .* expired on \d{4}-\d\d-\d\d"),
        ("not yet valid", r"the certificate .* is valid from \d{4}-\d\d-\d\d"),
    ],
)
def test_files_that_cannot_serve(
    settings: TlsConfig, tmp_path: Path, how: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        server_context(broken(settings, tmp_path, how), NOW)
    assert "\n" not in str(caught.value)


def test_only_tls_1_3_is_spoken_and_http_1_1_chosen(settings: TlsConfig, run_stub: Run) -> None:
    port = run_stub("plain", 1, settings.certificate, settings.key).ports()[0]
    with (
        socket.create_connection(("127.0.0.1", port), 10) as plain,
        client_context(settings).wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        assert secure.version() == "TLSv1.3"
        assert secure.selected_alpn_protocol() == "http/1.1"
        assert secure.compression() is None
    old = Client(client_context(settings, ssl.TLSVersion.TLSv1_2))
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        old.ask(port)


def test_every_worker_takes_every_ticket(settings: TlsConfig, run_stub: Run) -> None:
    """100 % resumption over three workers, and still when one of them was replaced."""
    stub = run_stub("plain", 3, settings.certificate, settings.key)
    ports = stub.ports()
    assert "https://127.0.0.1" in stub.said[-1]
    client = Client(client_context(settings))
    pids = dict(map(client.ask, ports))
    assert len(set(pids.values())) == 3
    for port in ports * 5:
        client.ask(port)
        assert client.reused
    os.kill(int(pids["0"]), signal.SIGKILL)
    stub.wait_for("worker 0 .* ended with SIGKILL")
    assert successor(client, ports[0]) != pids["0"]
    assert client.reused
    newcomer = Client(client.context)
    newcomer.ask(ports[0])
    assert not newcomer.reused
    newcomer.ask(ports[1])
    assert newcomer.reused


def successor(client: Client, port: int) -> str:
    """The pid of the new worker: the shared socket queues us until it accepts."""
    give_up_at = time.monotonic() + 10
    while True:
        try:
            return client.ask(port)[1]
        except OSError:
            assert time.monotonic() < give_up_at
            time.sleep(0.05)
