"""Which URLs key sets may be fetched from. Pure."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def url_fault(url: str, allow_http: bool) -> str | None:
    """Why `url` must not be fetched from, or None. The text itself may hold a password."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return "expected a URL"
    trusted = allow_http or _is_loopback(host)
    fault = None
    if not host or not url.isascii() or not url.isprintable() or " " in url:
        fault = "expected a URL with a host, in visible ASCII"
    elif parts.username is not None or parts.password is not None:
        fault = "expected no user name or password in the URL"
    elif parts.fragment:
        fault = "expected no fragment in the URL"
    elif parts.scheme not in ("https", "http"):
        fault = "expected an https URL"
    elif parts.scheme == "http" and not trusted:
        fault = "expected https (plain http only for loopback, or with `allow_http: true`)"
    elif _is_link_local(host) and not trusted:
        fault = "a link-local address is refused (set `allow_http: true` to allow it)"
    return fault


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _is_link_local(host: str) -> bool:
    address = _address(host)
    return address is not None and address.is_link_local
