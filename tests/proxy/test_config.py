"""The sections of the edge."""

from __future__ import annotations

from typing import Any

import pytest

from core.loading import ConfigProblems, convert
from proxy.config import AccessTarget, ListenConfig, LogConfig

GOOD: dict[str, Any] = {"addresses": ["127.0.0.1:0"], "tls": "off"}


def test_defaults_of_an_edge() -> None:
    made = convert(GOOD, ListenConfig, "/etc")
    assert made.timeouts.handshake_s == made.timeouts.head_s == 10
    assert (made.timeouts.body_s, made.timeouts.keep_alive_s) == (60, 75)
    assert made.limits.max_header_bytes == 65536
    assert made.limits.max_headers == 100
    assert made.limits.max_body_bytes == 4 * 1024 * 1024
    assert made.limits.max_connections is None


def test_tls_1_3_is_the_default_and_its_files_start_at_the_configuration() -> None:
    tls = convert(GOOD | {"tls": {"certificate": "c", "key": "k"}}, ListenConfig, "/etc").tls
    assert tls != "off"
    assert (tls.certificate, tls.key, tls.minimum_version) == ("/etc/c", "/etc/k", "1.3")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"tls": None}, "$.tls: expected `off` or a mapping with `certificate`, `key`, "),
        ({"tls": False}, "$.tls: expected `off` or a mapping"),
        ({"tls": {"certificate": "c"}}, "$.tls: missing key `key`"),
        (
            {"tls": {"certificate": "c", "key": "k", "minimum_version": "1.1"}},
            '$.tls.minimum_version: expected `1.2` or `1.3`, got "1.1"',
        ),
        ({"addresses": []}, "$.addresses: expected at least 1 entry, got 0"),
        ({"addresses": ["8080"]}, "$.addresses[0]: expected `host:port`"),
        ({"addresses": ["a:1", "a:1"]}, "$.addresses[1]: `a:1` is given twice"),
        ({"health_path": "healthz"}, "$.health_path: expected a path like /healthz"),
        ({"health_path": "/v1/models"}, "$.health_path: expected a path like /healthz"),
        ({"health_path": "/a/../b"}, "$.health_path: expected a path like /healthz"),
        ({"health_path": "//a"}, "$.health_path: expected a path like /healthz"),
        ({"cors": {"origins": []}}, "$.cors.origins: expected at least 1 entry"),
        ({"cors": {"origins": ["*", "app.example"]}}, "$.cors.origins[1]: expected `*` or an"),
        ({"cors": {"origins": ["https://a.example/"]}}, "$.cors.origins[0]: expected"),
        ({"timeouts": {"head_s": 0}}, "$.timeouts.head_s: expected a number above 0"),
        (
            {"limits": {"max_body": 1}},
            "$.limits: unknown key `max_body`; did you mean `max_b",
        ),
    ],
)
def test_faults(change: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigProblems) as caught:
        convert(GOOD | change, ListenConfig, "/etc")
    assert str(caught.value).startswith(fault)
    assert len(caught.value.problems) == 1


def test_the_missing_tls_must_be_asked_for_by_name() -> None:
    with pytest.raises(ConfigProblems, match=r"\$: missing key `tls` \(`off` or a mapping"):
        convert({"addresses": ["a:1"]}, ListenConfig, "/etc")


def test_where_the_access_log_goes() -> None:
    assert LogConfig().access == "stdout"
    assert convert({"access": "off"}, LogConfig, "/etc").access == "off"
    assert convert({"access": "./log"}, LogConfig, "/etc").access == "/etc/log"
    assert type(convert({"access": "/l"}, LogConfig, "/").access) is AccessTarget
    with pytest.raises(ConfigProblems, match=r"\$.access: expected `stdout`"):
        convert({"access": "stdin"}, LogConfig, "/etc")
