from __future__ import annotations

import contextlib
import ipaddress
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.listen.proxy_protocol import (
    HEAD_BYTES,
    MOST_BYTES,
    SIGNATURE,
    ProxyHeaderError,
    rest_length,
    source_address,
)

# Written by hand from section 2.2 of the specification.
IPV4 = bytes.fromhex("0d0a0d0a000d0a515549540a 21 11 000c c0000201 c6336407 9c40 01bb")
IPV6 = bytes.fromhex(
    "0d0a0d0a000d0a515549540a 21 21 0024"
    "20010db8000000000000000000000001 20010db8000000000000000000000002 9c40 01bb"
)
UNIX = SIGNATURE + b"\x21\x31\x00\xd8" + b"/run/a".ljust(108, b"\0") + b"/run/b".ljust(108, b"\0")
LOCAL = SIGNATURE + b"\x20\x00\x00\x00"
LOCAL_WITH_ADDRESSES = SIGNATURE + b"\x20\x11\x00\x0c" + IPV4[16:]
UNSPECIFIED = SIGNATURE + b"\x21\x00\x00\x05" + b"\x04\x00\x02ab"
TLV = bytes.fromhex("20 0003 01 0000")
WITH_TLV = SIGNATURE + b"\x21\x11" + struct.pack(">H", 12 + len(TLV)) + IPV4[16:] + TLV
DATAGRAM = SIGNATURE + b"\x21\x12\x00\x0c" + IPV4[16:]

GOOD = {
    "ipv4": (IPV4, "192.0.2.1"),
    "ipv6": (IPV6, "2001:db8::1"),
    "unix": (UNIX, "unix"),
    "local": (LOCAL, None),
    "local with addresses": (LOCAL_WITH_ADDRESSES, None),
    "unspecified": (UNSPECIFIED, None),
    "tlv": (WITH_TLV, "192.0.2.1"),
}


def read(data: bytes) -> str | None:
    """As the gateway does: so many bytes, then so many more."""
    head = data[:HEAD_BYTES]
    length = rest_length(head)
    return source_address(head, data[HEAD_BYTES : HEAD_BYTES + length])


@pytest.mark.parametrize(("data", "source"), GOOD.values(), ids=GOOD.keys())
def test_who_connected(data: bytes, source: str | None) -> None:
    assert rest_length(data[:HEAD_BYTES]) == len(data) - HEAD_BYTES
    assert read(data) == source


@pytest.mark.parametrize("data", [data for data, _ in GOOD.values()], ids=GOOD.keys())
def test_every_truncation_is_refused(data: bytes) -> None:
    for end in range(len(data)):
        with pytest.raises(ProxyHeaderError, match="incomplete"):
            read(data[:end])


def changed(data: bytes, place: int, byte: int) -> bytes:
    return data[:place] + bytes([byte]) + data[place + 1 :]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"PROXY TCP4 192.0.2.1 198.51.100.7 1 2\r\n", "no_header"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "no_header"),
        (b"\x16\x03\x01" + bytes(100), "no_header"),
        (changed(IPV4, 12, 0x11), "version"),
        (changed(IPV4, 12, 0x31), "version"),
        (changed(IPV4, 12, 0x22), "command"),
        (changed(IPV4, 13, 0x41), "family"),
        (changed(IPV4, 13, 0x10), "family"),
        (DATAGRAM, "family"),
        (SIGNATURE + b"\x21\x11\x00\x0b" + IPV4[16:-1], "incomplete"),
        (SIGNATURE + b"\x21\x21\x00\x0c" + IPV4[16:], "incomplete"),
        (SIGNATURE + b"\x21\x11\xff\xff" + bytes(65535), "too_long"),
        (SIGNATURE + b"\x20\x00" + struct.pack(">H", MOST_BYTES + 1) + bytes(5000), "too_long"),
    ],
)
def test_what_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ProxyHeaderError, match=f"^{reason}$"):
        read(data)


@given(st.binary(max_size=300))
def test_junk_is_refused_or_is_an_address(junk: bytes) -> None:
    for data in (junk, SIGNATURE + junk, IPV4[:13] + junk):
        found = None
        with contextlib.suppress(ProxyHeaderError):
            found = read(data)
        assert found is None or found == "unix" or ipaddress.ip_address(found)
