from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from backend.config import ReplicaConfig, ReplicaTlsConfig
from backend.upstream_tls import build_contexts
from core.errors import ConfigError
from core.section import FilePath


def context(tls: ReplicaTlsConfig | None) -> ssl.SSLContext:
    return build_contexts([ReplicaConfig(url="https://gpu", model="m", tls=tls)])["gpu:443"]


def test_verified_by_default() -> None:
    for made in (context(None), context(ReplicaTlsConfig())):
        assert made.verify_mode is ssl.CERT_REQUIRED
        assert made.check_hostname
        assert made.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_verification_must_be_turned_off_by_name() -> None:
    made = context(ReplicaTlsConfig(verify=False))
    assert made.verify_mode is ssl.CERT_NONE
    assert not made.check_hostname


def test_plain_replicas_have_none() -> None:
    assert build_contexts([ReplicaConfig(url="http://gpu", model="m")]) == {}


def test_files_that_do_not_load(tmp_path: Path) -> None:
    missing = FilePath(tmp_path / "ca.pem")
    with pytest.raises(ConfigError, match=r"gpu:443.*ca\.pem"):
        context(ReplicaTlsConfig(ca=missing))
    (tmp_path / "ca.pem").write_text("not a certificate")
    with pytest.raises(ConfigError, match=r"ca\.pem"):
        context(ReplicaTlsConfig(ca=missing))
