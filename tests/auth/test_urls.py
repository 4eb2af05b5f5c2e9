from __future__ import annotations

import pytest

from auth.urls import url_fault


@pytest.mark.parametrize(
    "url",
    [
        "https://id.example/jwks",
        "https://10.0.0.1:8443/",
        "http://localhost:80/",
        "http://127.0.0.1/",
        "http://[::1]/",
    ],
)
def test_urls_that_may_be_fetched_from(url: str) -> None:
    assert url_fault(url, allow_http=False) is None


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "with a host"),
        ("https://", "with a host"),
        ("https://id.example:x/", "expected a URL"),
        ("https://id example/", "with a host"),
        ("https://idé.example/", "visible ASCII"),
        ("https://user:pw@id.example/", "no user name"),
        ("https://id.example/#a", "no fragment"),
        ("ftp://id.example/", "expected an https URL"),
        ("http://id.example/", "expected https"),
        ("https://169.254.169.254/", "link-local"),
        ("https://[fe80::1]/", "link-local"),
    ],
)
def test_urls_that_may_not(url: str, words: str) -> None:
    fault = url_fault(url, allow_http=False)
    assert fault is not None
    assert words in fault
    assert "pw" not in fault


def test_what_can_be_allowed() -> None:
    assert url_fault("http://id.example/", allow_http=True) is None
    assert url_fault("https://169.254.169.254/", allow_http=True) is None
    assert url_fault("file:///etc/passwd", allow_http=True) is not None
