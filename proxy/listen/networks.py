"""Networks and addresses as text: which peers a setting like `trusted_proxies` means."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache

UNIX = "unix"
"""How a peer on a Unix socket is called."""


class Networks:
    """A set of networks (CIDR); the word `unix` stands for every peer on a Unix socket."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        """Raises ValueError with one sentence."""
        self.texts = tuple(texts)
        self._unix = UNIX in self.texts
        self._networks = [_network(text) for text in self.texts if text != UNIX]
        self._remembered = lru_cache(maxsize=4096)(self._contains)

    def __repr__(self) -> str:
        return f"<Networks {', '.join(self.texts)}>"

    def __bool__(self) -> bool:
        return bool(self.texts)

    def __contains__(self, address: str) -> bool:
        """False as well for what is no address."""
        return bool(self.texts) and self._remembered(address)

    def _contains(self, address: str) -> bool:
        if address == UNIX:
            return self._unix
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
        return any((mapped or parsed) in network for network in self._networks)


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        hint = ""
        if "host bits" in str(error):
            hint = f" (do you mean {ipaddress.ip_network(text, strict=False)}?)"
        raise ValueError(
            f'expected a network like 10.0.0.0/8, an address, or `unix`, got "{text}"{hint}'
        ) from None
