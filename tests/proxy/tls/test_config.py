"""The section `listen.tls`."""

from __future__ import annotations

from typing import Any

import pytest

from core.loading import ConfigProblems, convert
from proxy.tls.config import TlsConfig

ONE = {"certificate": "c.pem", "key": "k.pem"}


def made(**section: Any) -> TlsConfig:
    return convert(section, TlsConfig, "/etc")


def test_one_certificate_or_several() -> None:
    one = made(**ONE)
    assert [pair.certificate for pair in one.pairs] == ["/etc/c.pem"]
    assert one.place_of(0) == "$.listen.tls"
    several = made(certificates=[ONE, {**ONE, "names": ["B.example", "*.b.example"]}])
    assert [pair.names for pair in several.pairs] == [(), ("b.example", "*.b.example")]
    assert several.place_of(1) == "$.listen.tls.certificates[1]"


def test_defaults() -> None:
    tls = made(**ONE, client_certificates={"ca": "ca.pem"})
    assert tls.minimum_version == "1.3"
    assert (tls.tickets.files, tls.tickets.secret, tls.tickets.rotation_s) == ((), None, 43_200)
    assert tls.client_certificates is not None
    assert (tls.client_certificates.ca, tls.client_certificates.mode) == ("/etc/ca.pem", "required")


@pytest.mark.parametrize(
    ("section", "fault"),
    [
        ({}, "$: give `certificate` and `key`, or `certificates`"),
        ({"certificate": "c"}, "$: missing key `key`"),
        ({"key": "k"}, "$: missing key `certificate`"),
        ({**ONE, "certificates": [ONE]}, "$: give `certificate` and `key`, or `certificates`, not"),
        (
            {"certificates": [{**ONE, "names": ["a b"]}]},
            "$.certificates[0].names[0]: expected a ho",
        ),
        ({"certificates": [{**ONE, "names": ["a.*.c"]}]}, "$.certificates[0].names[0]: expected"),
        ({"certificates": [{**ONE, "names": ["ä.example"]}]}, "$.certificates[0].names[0]: expect"),
        ({**ONE, "tickets": {"files": ["1", "2"]}}, "$.tickets.files: 2 given, and 3 are needed"),
        (
            {**ONE, "tickets": {"files": ["1", "2", "3"], "secret": "env:S"}},
            "$.tickets: give `files` or `secret`, not both",
        ),
        (
            {**ONE, "tickets": {"rotation_s": 60}},
            "$.tickets.rotation_s: expected a number between 3600",
        ),
        ({**ONE, "client_certificates": {}}, "$.client_certificates: missing key `ca`"),
        (
            {**ONE, "client_certificates": {"ca": "c", "mode": "optional", "names": ["a.b"]}},
            "$.client_certificates: `names` says where a certificate is required",
        ),
        (
            {**ONE, "client_certificates": {"ca": "c", "mode": "off"}},
            "$.client_certificates.mode: expected `optional` or `required`",
        ),
    ],
)
def test_faults(section: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigProblems) as caught:
        made(**section)
    assert fault in str(caught.value)
