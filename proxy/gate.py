"""The strict request gate: what may become a request at all. The same for every protocol.

Each rule refuses something that another server reads differently, because two readings of one
message are how requests get smuggled (RFC 9112 section 11.2). llhttp is lenient in places that
matter here (double spaces, `HTTP/2.0`, `#` in the target, `Transfer-Encoding: gzip, chunked`,
chunked on HTTP/1.0, no Host or two), so the head is checked as raw bytes as well.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from core.errors import (
    BadRequest,
    ExpectationFailed,
    HeadersTooLarge,
    MethodNotAllowed,
    PayloadTooLarge,
    UnsupportedMediaType,
)
from core.exchange import Header
from proxy.config import ListenLimits

METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS"})

_REQUEST_LINE = re.compile(
    rb"([A-Z][A-Z-]{0,31}) (/[\x21\x22\x24-\x5b\x5d-\x7e]*) HTTP/1\.([01])\r\n"
)
_AUTHORITY = re.compile(rb"(?:[A-Za-z0-9._~-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_CONTROLS = bytes(set(range(32)) - {9, 10, 13}) + b"\x7f"
_DOT_SEGMENT = re.compile(r"/\.{1,2}(?:/|$)|//|%2e|%2f|%5c|%00", re.IGNORECASE)

_SINGLE = frozenset(
    {
        b"host",
        b"content-length",
        b"transfer-encoding",
        b"content-type",
        b"content-encoding",
        b"authorization",
        b"expect",
    }
)


@dataclass(frozen=True, slots=True)
class Framing:
    """How the body of a request ends. `length` is None for a chunked body."""

    length: int | None
    expects_continue: bool


def check_raw_head(head: bytes) -> None:
    """Refuse a head whose bytes can be read in two ways. `head` ends with an empty line."""
    request_line = _REQUEST_LINE.match(head)
    if request_line is None:
        raise BadRequest(
            "The request line must be METHOD /path HTTP/1.1 in origin form.",
            code="bad_request_line",
        )
    check_method(request_line[1].decode("ascii"))
    lines = head.count(b"\n")
    if head.count(b"\r\n") != lines or head.count(b"\r") != lines:
        raise BadRequest("A header line ends with a bare CR or LF.", code="bad_line_ending")
    if len(head.translate(None, _CONTROLS)) != len(head):
        raise BadRequest("A header contains a control character.", code="bad_header")
    if b"\r\n " in head or b"\r\n\t" in head:
        raise BadRequest("Folded header lines are not accepted.", code="bad_header")


def check_method(method: str) -> None:
    """Refuse what nothing here answers; CONNECT and the like would change the framing besides."""
    if method not in METHODS:
        allowed = ", ".join(sorted(METHODS))
        raise MethodNotAllowed(
            f"The methods that are answered are {allowed}.",
            headers=[(b"allow", allowed.encode("ascii"))],
        )


def check_partial_head(data: bytes, limits: ListenLimits) -> None:
    """Refuse early what can no longer become a good head, so that nobody waits for it."""
    if len(data) > limits.max_header_bytes:
        raise HeadersTooLarge(f"The header block is larger than {limits.max_header_bytes} bytes.")
    first_line_end = data.find(b"\n")
    if first_line_end >= 0 and _REQUEST_LINE.match(data) is None:
        raise BadRequest(
            "The request line must be METHOD /path HTTP/1.1 in origin form.",
            code="bad_request_line",
        )
    lines = data.count(b"\n")
    if data.count(b"\r\n") != lines:
        raise BadRequest("A header line ends with a bare LF.", code="bad_line_ending")


def check_head(version: str, headers: Sequence[Header], limits: ListenLimits) -> Framing:
    """Check the fields of one request and say how its body ends."""
    if len(headers) > limits.max_headers:
        raise HeadersTooLarge(f"More than {limits.max_headers} header fields.")
    seen: dict[bytes, bytes] = {}
    for name, value in headers:
        if b"_" in name:
            raise BadRequest("Header names with '_' are not accepted.", code="bad_header")
        if name in _SINGLE:
            if name in seen:
                raise BadRequest(
                    f"The header {name.decode('ascii')} is given twice.", code="duplicate_header"
                )
            seen[name] = value
    _check_authority(version, seen.get(b"host"))
    if b"content-encoding" in seen and seen[b"content-encoding"].lower() != b"identity":
        raise UnsupportedMediaType("Compressed request bodies are not accepted.")
    expect = seen.get(b"expect")
    if expect is not None and expect.lower() != b"100-continue":
        raise ExpectationFailed("The only Expect that is understood is 100-continue.")
    length = _body_length(version, seen.get(b"transfer-encoding"), seen.get(b"content-length"))
    if length is not None and length > limits.max_body_bytes:
        raise PayloadTooLarge(f"The body is larger than {limits.max_body_bytes} bytes.")
    return Framing(length, expects_continue=expect is not None and version != "1.0")


def check_path(path: str) -> None:
    """Refuse a path that a replica might normalise into another one (RFC 3986 section 6.2)."""
    if _DOT_SEGMENT.search(path):
        raise BadRequest(
            "The path contains dot segments, '//' or encoded separators.", code="bad_path"
        )


def _check_authority(version: str, host: bytes | None) -> None:
    if host is None:
        if version != "1.0":
            raise BadRequest("The Host header is missing.", code="bad_host")
    elif _AUTHORITY.fullmatch(host) is None:
        raise BadRequest("The Host header is not a host and port.", code="bad_host")


def _body_length(version: str, encoding: bytes | None, length: bytes | None) -> int | None:
    if encoding is not None:
        if version == "1.0":
            raise BadRequest("Transfer-Encoding needs HTTP/1.1.", code="bad_framing")
        if encoding.lower() != b"chunked":
            raise BadRequest("The only Transfer-Encoding is chunked.", code="bad_framing")
        if length is not None:
            raise BadRequest(
                "Content-Length and Transfer-Encoding exclude each other.", code="bad_framing"
            )
        return None
    if length is None:
        return 0
    if _LENGTH.fullmatch(length) is None:
        raise BadRequest("Content-Length is not a plain number.", code="bad_framing")
    return int(length)
