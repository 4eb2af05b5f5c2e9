"""Where to listen: `host:port`, `[v6]:port` or `unix:/path`, from text (RFC 3986 section 3.2)."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

_FORMS = "expected `host:port`, `[IPv6]:port` or `unix:/path`"
_LONGEST_UNIX_PATH = 107  # sun_path of Linux without the final zero byte


@dataclass(frozen=True, slots=True)
class Address:
    """A place to listen: `host` and `port` (0: any free one), or `path` of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def is_unix(self) -> bool:
        return bool(self.path)

    @property
    def is_loopback(self) -> bool:
        """Only this host can reach it."""
        if self.is_unix or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        if self.is_unix:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Raises ValueError with one sentence."""
    if text.startswith("unix:"):
        path = text[5:]
        if not path.startswith("/") or "\0" in path:
            raise ValueError(f'expected an absolute path after `unix:`, got "{text}"')
        if len(path.encode()) > _LONGEST_UNIX_PATH:
            raise ValueError(f"a Unix socket's path has at most {_LONGEST_UNIX_PATH} bytes")
        return Address(path=path)
    host, colon, port_text = text.rpartition(":")
    if not colon or not host:
        raise ValueError(f'{_FORMS}, got "{text}"')
    return Address(host=_host(host, text), port=_port(port_text, text))


def _host(host: str, text: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError:
            raise ValueError(f'{_FORMS}, got "{text}" (no IPv6 address in the brackets)') from None
    if ":" in host:
        raise ValueError(f'{_FORMS}, got "{text}" (an IPv6 address needs brackets)')
    if host[0].isdigit() and host.replace(".", "").isdigit():
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise ValueError(f'{_FORMS}, got "{text}" (not an IPv4 address)') from None
    if not host.isascii() or not host.replace("-", "").replace(".", "").isalnum():
        raise ValueError(f'{_FORMS}, got "{text}" (not a host name)')
    return host


def _port(port: str, text: str) -> int:
    if not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65_535:
        raise ValueError(f'expected a port between 0 and 65535, got "{text}"')
    return int(port)
