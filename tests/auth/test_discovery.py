from __future__ import annotations

import json
from typing import Any

import pytest

from auth.discovery import DiscoveryError, key_set_url, metadata_url

ISSUER = "https://id.example/realm"


@pytest.mark.parametrize(
    ("issuer", "url"),
    [
        ("https://id.example", "https://id.example/.well-known/openid-configuration"),
        ("https://id.example/", "https://id.example/.well-known/openid-configuration"),
        (ISSUER, "https://id.example/realm/.well-known/openid-configuration"),
    ],
)
def test_where_metadata_are(issuer: str, url: str) -> None:
    assert metadata_url(issuer) == url


def read(allow_http: bool = False, **members: Any) -> str:
    document = {"issuer": ISSUER, "jwks_uri": "https://keys.example/jwks"} | members
    return key_set_url(json.dumps(document).encode(), ISSUER, allow_http)


def test_the_key_set_may_be_on_another_host() -> None:
    assert read() == "https://keys.example/jwks"


def test_plain_http_must_be_allowed() -> None:
    assert read(True, jwks_uri="http://keys.example/jwks") == "http://keys.example/jwks"
    with pytest.raises(DiscoveryError, match="expected https"):
        read(jwks_uri="http://keys.example/jwks")


@pytest.mark.parametrize("issuer", [ISSUER + "/", "https://id.example", None, 1, [ISSUER]])
def test_metadata_of_somebody_else_are_refused(issuer: object) -> None:
    with pytest.raises(DiscoveryError, match="another issuer"):
        read(issuer=issuer)


@pytest.mark.parametrize("url", [None, 1, [], {}])
def test_without_a_key_set(url: object) -> None:
    with pytest.raises(DiscoveryError, match="no `jwks_uri`"):
        read(jwks_uri=url)


@pytest.mark.parametrize(
    "url", ["", "file:///etc/passwd", "https://user:pw@keys.example/", "https://169.254.169.254/x"]
)
def test_where_a_key_set_must_not_be(url: str) -> None:
    with pytest.raises(DiscoveryError, match="the metadata's `jwks_uri`"):
        read(jwks_uri=url)


@pytest.mark.parametrize("document", [b"", b"{", b"[]", b"null", b"\xff"])
def test_what_is_no_metadata(document: bytes) -> None:
    with pytest.raises(DiscoveryError):
        key_set_url(document, ISSUER, False)
