"""Whose request it is when proxies stand in front: `X-Forwarded-For` and `X-Forwarded-Proto`.

Each proxy appends the address that it saw, so the list is to be read from its right end: an entry
is true if the proxy that wrote it is trusted. The first address from the right that is not a
trusted proxy's is the client's; what stands left of it is whatever the client made up.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from core.exchange import Header
from proxy.listen.networks import Networks

_MOST_HOPS = 32
_SCHEMES = {b"http": "http", b"https": "https"}


def client_address(peer: str, headers: Sequence[Header], trusted: Networks) -> str:
    """The client's address as far as it can be known. `peer` is who connected."""
    if peer not in trusted:
        return peer
    hops = _entries(headers, b"x-forwarded-for")
    address = peer
    for hop in reversed(hops[-_MOST_HOPS:]):
        found = _address(hop)
        if found is None:
            return address  # nothing left of nonsense can be believed
        address = found
        if address not in trusted:
            return address
    return address


def client_scheme(peer: str, headers: Sequence[Header], trusted: Networks) -> str | None:
    """`http` or `https` as the trusted `peer` says the client came; None: it says nothing of use.
    Of several words the last one is the peer's own."""
    if peer not in trusted:
        return None
    words = _entries(headers, b"x-forwarded-proto")
    return _SCHEMES.get(words[-1].lower()) if words else None


def _entries(headers: Sequence[Header], name: bytes) -> list[bytes]:
    """The members of a list that may span several headers (RFC 9110 section 5.3)."""
    return [
        member.strip()
        for key, value in headers
        if key == name
        for member in value.split(b",")
        if member.strip()
    ]


def _address(text: bytes) -> str | None:
    """An address, with or without a port (`1.2.3.4:5`, `[2001:db8::1]:5`)."""
    host = text.decode("latin-1")
    if host.startswith("["):
        host, closed, port = host[1:].partition("]")
        if not closed or (port and not port.startswith(":")):
            return None
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        return None
    return str(parsed) if "%" not in host else None
