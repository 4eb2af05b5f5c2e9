"""HTTP/2 header fields and bodies to requests (RFC 9113 section 8.3). Pure: `now` is an argument.

The rules are the gate's, as for HTTP/1.1; here are those that only HTTP/2 has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from core.errors import BadRequest, HeadersTooLarge, PayloadTooLarge
from core.exchange import Header, Request
from proxy import gate
from proxy.config import ListenLimits

_PSEUDO = frozenset({b":method", b":scheme", b":authority", b":path"})
_CONNECTION_SPECIFIC = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
)
_SCHEMES = (b"https", b"http")
_FRAGILE = re.compile(rb"python|httpx", re.IGNORECASE)
"""Whose User-Agent says so gives up all its open streams when a GOAWAY comes, whatever that says:
httpx, which the Python SDKs use."""


class Head(NamedTuple):
    """What the header block of a request says. `headers` have a Host and no Content-Length;
    `length` is that of the body, if it was announced. `fragile`: see `_FRAGILE`."""

    method: str
    path: str
    query: str
    headers: list[Header]
    length: int | None
    fragile: bool


_NO_HEAD = Head("", "", "", [], None, False)


class HeadReader:
    """Reads the heads of one connection. `size`: of the last one, good or bad."""

    __slots__ = ("_before", "_last", "_length_at", "_limits", "size")

    def __init__(self, limits: ListenLimits) -> None:
        self._limits = limits
        self._before: Sequence[Header] = ()
        self._last = _NO_HEAD
        self._length_at = -1  # where a Content-Length stands in `_before`
        self.size = 0

    def __repr__(self) -> str:
        return f"<HeadReader {len(self._before)} fields before>"

    def read(self, fields: Sequence[Header]) -> Head:
        """Raises the GatewayError that refuses the request. A client repeats its fields from
        request to request but for the Content-Length: what is equal was judged before."""
        before, at = self._before, self._length_at
        if fields == before:
            return self._last
        if (
            0 <= at < len(fields)
            and fields[:at] == before[:at]
            and fields[at + 1 :] == before[at + 1 :]
        ):
            name, value = fields[at]
            if name == b"content-length":
                return self._last._replace(length=gate.content_length(value, self._limits))
        head = self._judge(fields)
        self._before, self._last = fields, head
        names = [name for name, _ in fields]
        self._length_at = -1 if head.length is None else names.index(b"content-length")
        return head

    def _judge(self, fields: Sequence[Header]) -> Head:
        limits = self._limits
        self.size = sum(len(name) + len(value) + 4 for name, value in fields)
        if self.size > limits.max_header_bytes:
            raise HeadersTooLarge(
                f"The header block is larger than {limits.max_header_bytes} bytes."
            )
        pseudo: dict[bytes, bytes] = {}
        headers: list[Header] = []
        for name, value in fields:
            if name[:1] == b":":
                if headers or name in pseudo or name not in _PSEUDO:
                    raise BadRequest("The pseudo-header fields are wrong.", code="bad_header")
                pseudo[name] = value
            elif name in _CONNECTION_SPECIFIC or (name == b"te" and value != b"trailers"):
                raise BadRequest(
                    f"The header {name.decode('latin-1')} does not exist in HTTP/2.",
                    code="bad_header",
                )
            else:
                headers.append((name, value))
        method, target = gate.parse_line(pseudo.get(b":method", b""), pseudo.get(b":path", b""))
        if pseudo.get(b":scheme") not in _SCHEMES:
            raise BadRequest("The scheme must be https or http.", code="bad_scheme")
        _merge_authority(pseudo.get(b":authority"), headers)
        gate.check_fields(headers)
        framing = gate.check_head("2", headers, limits)
        path, _, query = target.partition("?")
        gate.check_path(path)
        kept = [header for header in headers if header[0] != b"content-length"]
        length = framing.length if len(kept) < len(headers) else None
        agent = next((value for name, value in kept if name == b"user-agent"), b"")
        fragile = _FRAGILE.search(agent) is not None
        return Head(method, path, query, kept, length, fragile)


def _merge_authority(authority: bytes | None, headers: list[Header]) -> None:
    """`:authority` is the Host; who sends both sends the same (section 8.3.1)."""
    if authority is None:
        return
    hosts = [value for name, value in headers if name == b"host"]
    if not hosts:
        headers.insert(0, (b"host", authority))
    elif hosts != [authority]:
        raise BadRequest("Host and :authority differ.", code="bad_host")


class IncomingRequest:
    """A request whose body is arriving: `size` bytes so far, since the monotonic `started_at`. At
    `look_at` somebody should judge how fast it comes; `held` of its bytes are counted elsewhere."""

    __slots__ = ("_head", "_limits", "_parts", "held", "look_at", "size", "started_at")

    def __init__(self, head: Head, limits: ListenLimits, now: float) -> None:
        self._head = head
        self._limits = limits
        self.started_at = self.look_at = now
        self._parts: list[bytes] = []
        self.size = 0
        self.held = 0

    def __repr__(self) -> str:
        return f"<IncomingRequest {self._head.method} {self._head.path} {self.size} B>"

    def add(self, data: bytes) -> None:
        """Raises PayloadTooLarge."""
        if self.size + len(data) > self._limits.max_body_bytes:
            raise PayloadTooLarge(f"The body is larger than {self._limits.max_body_bytes} bytes.")
        self.size += len(data)
        self._parts.append(data)

    def complete(self, peer: str, now: float) -> Request:
        """Raises BadRequest when it is not as long as announced (section 8.1.1)."""
        method, path, query, headers, length, _ = self._head
        if length is not None and length != self.size:
            raise BadRequest("The body is not as long as announced.", code="bad_framing")
        body = b"".join(self._parts)
        begun = self.started_at
        return Request(method, path, query, headers, body, peer, "2", begun, now, begun)
