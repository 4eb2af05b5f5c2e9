"""Where a replica listens: the parsed form of its `url`."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,253}[A-Za-z0-9_.])?\Z")
_PATH = re.compile(r"/[\x21-\x7e]+\Z")


@dataclass(frozen=True, slots=True)
class Address:
    """A TCP host and port (`path` empty) or a Unix socket (`host` empty).

    `host` has no brackets; `is_ip` says that it needs no name look-up.
    """

    host: str
    port: int
    path: str
    tls: bool
    is_ip: bool

    @property
    def name(self) -> str:
        """`host:port`, `[v6]:port` or the path of the socket: the default id of a replica."""
        return self.path or f"{self._bracketed}:{self.port}"

    @property
    def authority(self) -> str:
        """The value of the Host header (RFC 9110 section 7.2): the default port is left out."""
        if self.path:
            return "localhost"
        if self.port == DEFAULT_PORTS["https" if self.tls else "http"]:
            return self._bracketed
        return self.name

    @property
    def origin(self) -> str:
        """`scheme://authority`, the start of a URL for a general HTTP client."""
        return f"{'https' if self.tls else 'http'}://{self.authority}"

    @property
    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


def parse_address(url: str) -> Address:
    """`http://host:port`, `https://host:port` or `unix:/path`.

    Raises ValueError with one sentence. Nothing but scheme, host and port is accepted: a user
    name or a query in it is always a mistake.
    """
    if url.startswith("unix:"):
        path = url[5:]
        if not _PATH.match(path):
            raise ValueError("expected unix:/absolute/path without spaces")
        return Address("", 0, path, tls=False, is_ip=False)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"not a URL: {error}") from error
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
        raise ValueError("expected http://host:port, https://host:port or unix:/path")
    if "@" in parts.netloc or parts.path not in ("", "/") or "?" in url or "#" in url:
        raise ValueError("expected scheme, host and port alone (no user, path, query or fragment)")
    if port == 0:
        raise ValueError("port 0 cannot be connected to")
    is_ip = _is_ip(parts.hostname)
    if not is_ip and not _HOST.match(parts.hostname):
        raise ValueError("the host is neither a name nor an IP address")
    return Address(
        parts.hostname,
        port or DEFAULT_PORTS[parts.scheme],
        "",
        tls=parts.scheme == "https",
        is_ip=is_ip,
    )


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
