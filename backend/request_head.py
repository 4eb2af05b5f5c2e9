"""The bytes of a request to a replica, built from scratch. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from core.exchange import Header

_LINE = b"\r\n%b: %b".__mod__


class RequestHead:
    """The part of a request's head that is the same for every request to one replica."""

    __slots__ = ("bodiless", "with_body")

    def __init__(
        self,
        authority: bytes,
        authorization: bytes | None = None,
        *,
        more: Sequence[Header] = (),
    ) -> None:
        """`more`: headers of every request."""
        head = b" HTTP/1.1\r\nhost: " + authority + b"\r\naccept-encoding: identity"
        if authorization is not None:
            head += b"\r\nauthorization: " + authorization
        for name, value in more:
            head += b"\r\n" + name + b": " + value
        self.bodiless = head
        self.with_body = head + b"\r\ncontent-length: "

    def build(self, method: bytes, path: bytes, headers: Sequence[Header], body: bytes) -> bytes:
        """The whole request. A POST always has a length (RFC 9110 section 8.6)."""
        if body or method == b"POST":
            parts = [method, b" ", path, self.with_body, b"%d" % len(body)]
        else:
            parts = [method, b" ", path, self.bodiless]
        parts += map(_LINE, headers)
        parts += (b"\r\n\r\n", body)
        return b"".join(parts)


class Http2RequestHead:
    """The same for HTTP/2 (RFC 9113 section 8.3.1): header lists instead of bytes."""

    __slots__ = ("_after", "_before")

    def __init__(
        self,
        authority: bytes,
        authorization: bytes | None = None,
        scheme: bytes = b"http",
        *,
        more: Sequence[Header] = (),
    ) -> None:
        self._before = ((b":scheme", scheme), (b":authority", authority))
        self._after: tuple[Header, ...] = ((b"accept-encoding", b"identity"),)
        if authorization is not None:
            self._after += ((b"authorization", authorization),)
        self._after += tuple(more)

    def build(
        self, method: bytes, path: bytes, headers: Sequence[Header], body: bytes
    ) -> list[Header]:
        """The header list of a request; the body goes apart."""
        made = [(b":method", method), (b":path", path), *self._before, *self._after, *headers]
        if body or method == b"POST":
            made.append((b"content-length", b"%d" % len(body)))
        return made
