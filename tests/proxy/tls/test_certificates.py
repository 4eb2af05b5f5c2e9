"""What a certificate must be to be used, and which one a host name means."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from authority import DAY, Authority, now
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from core.errors import ConfigError
from core.section import FilePath
from proxy.tls.certificates import Authorities, HostTable, covers, load_server_certificate
from proxy.tls.config import CertificateConfig


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


# --- host names


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("a.example", 1),
        ("b.example", 0),
        ("x.b.example", 2),
        ("y.x.b.example", 0),
        ("c.b.example", 3),
        ("example", 0),
        ("", 0),
        (None, 0),
    ],
)
def test_a_name_is_looked_up_exactly_then_as_a_wildcard(name: str | None, found: int) -> None:
    table = HostTable(0)
    table.add(["a.example"], 1)
    table.add(["*.b.example", "a.example"], 2)
    table.add(["c.b.example"], 3)
    assert table.find(name) == found


def test_what_a_wildcard_covers() -> None:
    assert covers(["*.example"], "a.example")
    assert covers(["*.example"], "*.example")
    assert not covers(["*.example"], "example")
    assert not covers(["*.example"], "b.a.example")
    assert not covers(["a.example"], "*.example")


# --- our certificates


def test_a_certificate_is_shown_for_the_names_that_it_covers(authority: Authority) -> None:
    pair = authority.issue("A.example", "*.b.example", days=9)
    loaded = load_server_certificate(pair.config(), now(), default=False)
    assert loaded.names == ("a.example", "*.b.example")
    assert loaded.path == pair.certificate
    assert 8.9 * DAY < loaded.expires_at - now() < 9 * DAY
    fewer = load_server_certificate(pair.config("x.b.example"), now(), default=False)
    assert fewer.names == ("x.b.example",)


def test_names_that_it_does_not_cover(authority: Authority) -> None:
    pair = authority.issue("a.example")
    with pytest.raises(ConfigError, match=r"does not cover c\.example; it covers a\.example$"):
        load_server_certificate(pair.config("a.example", "c.example"), now(), default=True)


def test_only_the_first_certificate_may_have_no_names(authority: Authority) -> None:
    pair = authority.issue()
    assert load_server_certificate(pair.config(), now(), default=True).names == ()
    with pytest.raises(ConfigError, match="covers no DNS name"):
        load_server_certificate(pair.config(), now(), default=False)


def broken(authority: Authority, folder: Path, how: str) -> CertificateConfig:
    pair = authority.issue("a.example")
    certificate, key = Path(pair.certificate), Path(pair.key)
    text = folder / "text"
    text.write_text("not PEM\n")
    match how:
        case "no certificate":
            certificate = folder / "none.pem"
        case "no key":
            key = folder / "none.pem"
        case "folder":
            key = folder
        case "certificate is text":
            certificate = text
        case "key is text":
            key = text
        case "swapped":
            certificate, key = key, certificate
        case "other key":
            key = Path(authority.issue("a.example").key)
        case "encrypted":
            loaded = serialization.load_pem_private_key(key.read_bytes(), None)
            key.write_bytes(
                loaded.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.BestAvailableEncryption(b"secret"),
                )
            )
        case "expired":
            return authority.issue("a.example", since=-9, days=-1).config()
        case "not yet valid":
            return authority.issue("a.example", since=1).config()
    return CertificateConfig(certificate=FilePath(certificate), key=FilePath(key))


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
    authority: Authority, tmp_path: Path, how: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        load_server_certificate(broken(authority, tmp_path, how), now(), default=True)
    assert "\n" not in str(caught.value)


# --- clients' authorities


def leaf(authority: Authority, *names: str) -> x509.Certificate:
    pair = authority.issue(*names)
    return x509.load_pem_x509_certificate(Path(pair.certificate).read_bytes())


def test_the_policy_is_that_of_the_set(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path, name="other")
    texts = [Path(a.path).read_text() for a in (authority, other)]
    made = []
    for number, text in enumerate(["".join(texts), "".join(reversed(texts)) + texts[0], texts[0]]):
        path = tmp_path / f"{number}.pem"
        path.write_text(text)
        made.append(Authorities.load(str(path), now()).policy)
    assert made[0] == made[1] != made[2]
    assert len(made[0]) == 32


def test_who_issued_a_certificate(authority: Authority, tmp_path: Path) -> None:
    authorities = Authorities.load(authority.path, now())
    issuer = authorities.issuer_of(leaf(authority, "c"))
    assert issuer is not None
    assert issuer.subject.rfc4514_string() == "CN=authority"
    namesake = Authority(tmp_path)  # of the same name, with another key
    assert authorities.issuer_of(leaf(namesake, "c")) is None
    assert authorities.issuer_of(leaf(Authority(tmp_path, name="other"), "c")) is None


def test_ca_files_that_cannot_be_used(authority: Authority, tmp_path: Path) -> None:
    old = Authority(tmp_path, days=-1)
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    issued = authority.issue("c").certificate
    for path, sentence in [
        (str(empty), "the CA file .*empty.pem holds no certificate in PEM form"),
        (str(tmp_path / "none.pem"), "cannot read the CA file .*none.pem: No such file"),
        (old.path, "every certificate of the CA file .* has expired, the last one on "),
        (issued, "holds a certificate of no authority: CN=subject"),
    ]:
        with pytest.raises(ConfigError, match=sentence):
            Authorities.load(path, now())


def test_an_authority_that_expired_may_stay_beside_another(
    authority: Authority, tmp_path: Path
) -> None:
    both = tmp_path / "both.pem"
    old = Authority(tmp_path, days=-1)
    both.write_bytes(Path(old.path).read_bytes() + Path(authority.path).read_bytes())
    loaded = Authorities.load(os.fspath(both), now())
    assert loaded.expires_at < now()
    assert loaded.pem().count("BEGIN CERTIFICATE") == 2
