"""The PROXY protocol, version 2: who connected to the proxy in front of us.

Pure: bytes in, an address out. A header is 16 bytes that say how long the rest is, then two
addresses, then TLVs, which are skipped. The text form of version 1 is not accepted: it has no
length in advance, and every proxy of today speaks version 2.

Source: "The PROXY protocol", section 2.2 (https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt).
"""

from __future__ import annotations

import ipaddress

from proxy.listen.networks import UNIX

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
HEAD_BYTES = 16
MOST_BYTES = 4096
"""The longest rest that is accepted: addresses of Unix sockets take 216 bytes, TLVs (certificate
names and the like) some hundreds."""

_LOCAL, _PROXY = 0, 1
_UNSPECIFIED, _INET, _INET6, _UNIX = range(4)
_LENGTHS = {_INET: 12, _INET6: 36, _UNIX: 216}


class ProxyHeaderError(Exception):
    """What came is not a header of version 2 that we accept; `str()` is one short reason."""


def rest_length(head: bytes) -> int:
    """How many bytes follow the first 16. Raises ProxyHeaderError."""
    if len(head) != HEAD_BYTES:
        raise ProxyHeaderError("incomplete")
    if not head.startswith(SIGNATURE):
        raise ProxyHeaderError("no_header")
    if head[12] >> 4 != 2:
        raise ProxyHeaderError("version")
    length = int.from_bytes(head[14:16], "big")
    if length > MOST_BYTES:
        raise ProxyHeaderError("too_long")
    return length


def source_address(head: bytes, rest: bytes) -> str | None:
    """The client's address, `unix`, or None where the proxy speaks for itself (the command LOCAL:
    its own health checks) or does not know. Raises ProxyHeaderError."""
    if len(rest) != rest_length(head):
        raise ProxyHeaderError("incomplete")
    command = head[12] & 0xF
    if command == _LOCAL:
        return None
    if command != _PROXY:
        raise ProxyHeaderError("command")
    family, transport = head[13] >> 4, head[13] & 0xF
    if family == _UNSPECIFIED:
        return None
    if family not in _LENGTHS or transport != 1:  # anything but a stream cannot have come here
        raise ProxyHeaderError("family")
    if len(rest) < _LENGTHS[family]:
        raise ProxyHeaderError("incomplete")
    if family == _UNIX:
        return UNIX
    size = 4 if family == _INET else 16
    return str(ipaddress.ip_address(rest[:size]))
