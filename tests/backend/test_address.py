from __future__ import annotations

import pytest

from backend.address import parse_address


@pytest.mark.parametrize(
    ("url", "name", "authority", "origin"),
    [
        ("http://10.0.0.1:8000", "10.0.0.1:8000", "10.0.0.1:8000", "http://10.0.0.1:8000"),
        ("http://gpu-1", "gpu-1:80", "gpu-1", "http://gpu-1"),
        ("https://gpu_1.example/", "gpu_1.example:443", "gpu_1.example", "https://gpu_1.example"),
        ("https://[::1]:8443", "[::1]:8443", "[::1]:8443", "https://[::1]:8443"),
        ("unix:/run/vllm.sock", "/run/vllm.sock", "localhost", "http://localhost"),
    ],
)
def test_accepted(url: str, name: str, authority: str, origin: str) -> None:
    address = parse_address(url)
    assert (address.name, address.authority, address.origin) == (name, authority, origin)
    assert address.tls == url.startswith("https")


def test_ip_needs_no_look_up() -> None:
    assert parse_address("http://[fe80::1]:1").is_ip
    assert parse_address("http://127.0.0.1:1").is_ip
    assert not parse_address("http://localhost:1").is_ip


@pytest.mark.parametrize(
    "url",
    [
        "",
        "gpu:8000",
        "ftp://gpu",
        "http://",
        "http://user@gpu",
        "http://gpu/v1",
        "http://gpu?x",
        "http://gpu#x",
        "http://gpu:0",
        "http://gpu:99999",
        "http://gpu:x",
        "http://g pu",
        "http://gpu\r\nx: y",
        "http://gpü",
        "http://[::1",
        "unix:relative",
        "unix:/with space",
    ],
)
def test_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_address(url)
