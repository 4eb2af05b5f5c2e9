"""Where a URL leads."""

from __future__ import annotations

import ssl

import pytest

from loadtest.lanes import parse_target

TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "secure"),
    [
        ("http://a", "a", 80, "/v1/chat/completions", False),
        ("https://a/", "a", 443, "/v1/chat/completions", True),
        ("https://a:8443/v1", "a", 8443, "/v1/chat/completions", True),
        ("http://[::1]:9/x/v1/", "::1", 9, "/x/v1/chat/completions", False),
        ("http://a/own/chat/completions", "a", 80, "/own/chat/completions", False),
    ],
)
def test_a_target(url: str, host: str, port: int, path: str, secure: bool) -> None:
    target = parse_target(url, TLS)
    assert (target.host, target.port, target.path) == (host, port, path)
    assert (target.tls is TLS) is secure


@pytest.mark.parametrize("url", ["a:80", "ftp://a", "http://", "http://a:port"])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_target(url, None)
