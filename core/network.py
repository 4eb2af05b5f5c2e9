"""Whom an address belongs to."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

IPV6_PREFIX = 64


@lru_cache(maxsize=4096)
def network_of(address: str) -> str:
    """An IPv4 address is itself, one of IPv6 its /64, since that is what one customer has to choose
    from. Empty for what is no address (a Unix socket)."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, IPV6_PREFIX), strict=False))
