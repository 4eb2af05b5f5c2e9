"""Listening addresses as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.listen.address import Address, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0:8443", Address(host="0.0.0.0", port=8443)),
        ("127.0.0.1:0", Address(host="127.0.0.1", port=0)),
        ("localhost:80", Address(host="localhost", port=80)),
        ("[::]:8443", Address(host="::", port=8443)),
        ("[0:0:0:0:0:0:0:1]:1", Address(host="::1", port=1)),
        ("gateway-1.internal:65535", Address(host="gateway-1.internal", port=65535)),
        ("unix:/run/headrace.sock", Address(path="/run/headrace.sock")),
    ],
)
def test_forms(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("8443", "expected `host:port`"),
        (":8443", "expected `host:port`"),
        ("host:", "a port between"),
        ("host:65536", "a port between"),
        ("host:0x50", "a port between"),
        ("host:-1", "a port between"),
        ("host:\u0661", "a port between"),
        ("::1:8443", "needs brackets"),
        ("[::g]:80", "no IPv6 address"),
        ("[127.0.0.1]:80", "no IPv6 address"),
        ("256.0.0.1:80", "not an IPv4"),
        ("1.2.3:80", "not an IPv4"),
        ("http://host:80", "needs brackets"),
        ("a b:80", "not a host name"),
        ("h\u00f6st:80", "not a host name"),
        ("unix:run.sock", "absolute path"),
        ("unix:/a\0b", "absolute path"),
        ("unix:/" + "a" * 107, "at most 107 bytes"),
        ("", "expected `host:port`"),
    ],
)
def test_faults_are_one_sentence(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.8.0.1:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("unix:/x", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("localhost.example:1", False),
    ],
)
def test_who_can_reach_it(text: str, loopback: bool) -> None:
    assert parse_address(text).is_loopback is loopback


@given(st.ip_addresses(), st.integers(0, 65535))
def test_every_ip_address_survives_the_way_through_text(ip: object, port: int) -> None:
    address = Address(host=str(ip), port=port)
    assert parse_address(str(address)).port == port
    assert parse_address(str(parse_address(str(address)))) == parse_address(str(address))
