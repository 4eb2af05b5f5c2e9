from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.exchange import Header
from proxy.listen.forwarded import client_address, client_scheme
from proxy.listen.networks import Networks

TRUSTED = Networks(["10.0.0.0/8", "2001:db8::/32"])


def forwarded(*values: bytes) -> list[Header]:
    return [(b"host", b"a"), *[(b"x-forwarded-for", value) for value in values]]


@pytest.mark.parametrize(
    ("values", "client"),
    [
        ([], "10.0.0.1"),
        ([b"192.0.2.1"], "192.0.2.1"),
        ([b"1.1.1.1, 192.0.2.1"], "192.0.2.1"),  # what the client made up stays unread
        ([b"1.1.1.1", b"192.0.2.1"], "192.0.2.1"),
        ([b"192.0.2.1, 10.0.0.9 ,10.0.0.8"], "192.0.2.1"),
        ([b"192.0.2.1", b"10.0.0.9"], "192.0.2.1"),
        ([b"10.0.0.9, 10.0.0.8"], "10.0.0.9"),  # everybody is trusted: the first one
        ([b"192.0.2.1:5555"], "192.0.2.1"),
        ([b"[2001:DB9::1]:443"], "2001:db9::1"),
        ([b"2001:db9:0::1"], "2001:db9::1"),
        ([b"[2001:db9::1]"], "2001:db9::1"),
        ([b"192.0.2.1,,"], "192.0.2.1"),
        ([b"junk, 10.0.0.9"], "10.0.0.9"),
        ([b"192.0.2.1, unknown"], "10.0.0.1"),
        ([b"192.0.2.1, \xff\n"], "10.0.0.1"),
        ([b"192.0.2.1, fe80::1%eth0"], "10.0.0.1"),
        ([b"192.0.2.1, [::1"], "10.0.0.1"),
        ([b"192.0.2.1, [::1]x"], "10.0.0.1"),
        ([b"192.0.2.1, 1.2.3.4:5:6"], "10.0.0.1"),
    ],
)
def test_the_chain_is_read_from_the_right(values: list[bytes], client: str) -> None:
    assert client_address("10.0.0.1", forwarded(*values), TRUSTED) == client


@pytest.mark.parametrize("peer", ["192.0.2.9", "unix", "2001:db9::1", ""])
def test_who_is_not_trusted_is_not_believed(peer: str) -> None:
    assert client_address(peer, forwarded(b"1.2.3.4"), TRUSTED) == peer
    assert client_scheme(peer, [(b"x-forwarded-proto", b"https")], TRUSTED) is None


def test_a_proxy_on_a_unix_socket() -> None:
    assert client_address("unix", forwarded(b"1.2.3.4"), Networks(["unix"])) == "1.2.3.4"


def test_an_endless_chain_is_not_read_to_its_end() -> None:
    chain = b"192.0.2.1," + b",".join([b"10.0.0.9"] * 5000)
    assert client_address("10.0.0.1", forwarded(chain), TRUSTED) == "10.0.0.9"


@pytest.mark.parametrize(
    ("values", "scheme"),
    [
        ([], None),
        ([b"https"], "https"),
        ([b"HTTP"], "http"),
        ([b"https, http"], "http"),
        ([b"http", b"https"], "https"),
        ([b"gopher"], None),
        ([b" "], None),
    ],
)
def test_the_scheme(values: list[bytes], scheme: str | None) -> None:
    headers = [(b"x-forwarded-proto", value) for value in values]
    assert client_scheme("10.0.0.1", headers, TRUSTED) == scheme


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_whatever_a_header_holds_the_address_is_one(values: list[bytes]) -> None:
    found = client_address("10.0.0.1", forwarded(*values), TRUSTED)
    assert found == "10.0.0.1" or "." in found or ":" in found
    assert found.isascii()
    assert found.isprintable()
