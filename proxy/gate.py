"""The strict request gate: what may become a request at all. The same for every protocol.

Each rule refuses something that another server reads differently, because two readings of one
message are how requests get smuggled (RFC 9112 section 11.2). A head of HTTP/1.1 must match one
regular expression from its first to its last byte: a single space between the parts of the
request line, origin form, version 1.0 or 1.1, field names that are tokens right up to the colon,
values without control characters, CRLF at the end of every line and nowhere else. General
parsers are lenient in each of these places.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

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

_METHOD = rb"[A-Z][A-Z-]{0,31}"
_TARGET = rb"/[\x21\x22\x24-\x5b\x5d-\x7e]*"
_LINE = rb"(%b) (%b) HTTP/(1\.[01])\r\n" % (_METHOD, _TARGET)
_FIELD = rb"[A-Za-z0-9!#$%&'*+.^`|~_-]+:[\t\x20-\x7e\x80-\xff]*\r\n"
_REQUEST_LINE = re.compile(_LINE)
_METHOD_AND_TARGET = re.compile(rb"(%b) (%b)" % (_METHOD, _TARGET))
_LOWER_FIELDS = re.compile(
    rb"(?:[a-z0-9!#$%&'*+.^`|~_-]+\0(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*"
    rb"[\x21-\x7e\x80-\xff])?)?\0)*"
)
_HEAD = re.compile(rb"%b((?:%b)*)\r\n" % (_LINE, _FIELD))
_FIELDS = re.compile(rb"([^:\r\n]+):[ \t]*([^\r\n]*)\r\n")
_AUTHORITY = re.compile(rb"(?:[A-Za-z0-9._~-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_FRAMING_FIELDS = (b"content-length", b"transfer-encoding")
_DOT_SEGMENT = re.compile(r"/\.{1,2}(?:/|$)|//|%2e|%2f|%5c|%00", re.IGNORECASE)
_MODEL = "/v1/models/"
_ENCODED_SLASH = re.compile("%2f", re.IGNORECASE)

_SINGLE = frozenset(
    {
        b"host",
        b"content-length",
        b"transfer-encoding",
        b"content-type",
        b"content-encoding",
        b"authorization",
        b"x-api-key",
        b"expect",
    }
)


class Framing(NamedTuple):
    """How the body of a request ends, and whether another request may follow. `length` is None
    for a chunked body."""

    length: int | None
    expects_continue: bool
    keep_alive: bool


def parse_head(head: bytes) -> tuple[str, str, str, list[Header]]:
    """Method, target, version and fields of a head that ends with an empty line.

    The values of the fields that decide about framing keep their trailing white space, for
    `check_head` to refuse.
    """
    match = _HEAD.fullmatch(head)
    if match is None:
        raise _why_not(head)
    method, target, version, fields = match.groups()
    headers: list[Header] = []
    for name, value in _FIELDS.findall(fields):
        name = name.lower()
        if value[-1:] in (b" ", b"\t") and name not in _FRAMING_FIELDS:
            value = value.rstrip(b" \t")
        headers.append((name, value))
    text = method.decode("ascii")
    if text not in METHODS:
        check_method(text)
    return text, target.decode("ascii"), version.decode("ascii"), headers


def parse_line(method: bytes, target: bytes) -> tuple[str, str]:
    """Method and target of a request that has no request line (RFC 9113 section 8.3.1)."""
    if _METHOD_AND_TARGET.fullmatch(b"%b %b" % (method, target)) is None:
        raise BadRequest(
            "The request must have a method, and a path in origin form.", code="bad_request_line"
        )
    text = method.decode("ascii")
    if text not in METHODS:
        check_method(text)
    return text, target.decode("ascii")


def check_fields(headers: Sequence[Header]) -> None:
    """Names that are tokens in lower case, and values without control characters or white space
    around them (RFC 9113 section 8.2.1)."""
    # Joined by what may stand in neither, and counted, the text can be read in one way only.
    text = b"".join([b"%b\0%b\0" % header for header in headers])
    if text.count(b"\0") != 2 * len(headers) or _LOWER_FIELDS.fullmatch(text) is None:
        raise BadRequest("A header is not a name and a value of good form.", code="bad_header")


def _why_not(head: bytes) -> BadRequest:
    """Which rule a head breaks that does not match."""
    if _REQUEST_LINE.match(head) is None:
        return BadRequest(
            "The request line must be METHOD /path HTTP/1.1 in origin form.",
            code="bad_request_line",
        )
    lines = head.count(b"\n")
    if head.count(b"\r\n") != lines or head.count(b"\r") != lines:
        return BadRequest("A header line ends with a bare CR or LF.", code="bad_line_ending")
    if b"\r\n " in head or b"\r\n\t" in head:
        return BadRequest("Folded header lines are not accepted.", code="bad_header")
    return BadRequest(
        "A header is not `name: value` without control characters.", code="bad_header"
    )


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
        if name in _SINGLE:
            if name in seen:
                raise BadRequest(
                    f"The header {name.decode('ascii')} is given twice.", code="duplicate_header"
                )
            seen[name] = value
        elif 95 in name:  # an underscore
            raise BadRequest("Header names with '_' are not accepted.", code="bad_header")
    _check_authority(version, seen.get(b"host"))
    expect = seen.get(b"expect")
    if expect is not None and expect.lower() != b"100-continue":
        raise ExpectationFailed("The only Expect that is understood is 100-continue.")
    if b"content-encoding" in seen and seen[b"content-encoding"].lower() != b"identity":
        raise UnsupportedMediaType("Compressed request bodies are not accepted.")
    length = _body_length(version, seen.get(b"transfer-encoding"), seen.get(b"content-length"))
    if length is not None:
        _check_length(length, limits)
    return Framing(length, expect is not None and version != "1.0", _keep_alive(version, headers))


def content_length(value: bytes, limits: ListenLimits) -> int:
    """The number, checked as `check_head` does."""
    length = _number(value)
    _check_length(length, limits)
    return length


def _keep_alive(version: str, headers: Sequence[Header]) -> bool:
    """RFC 9112 section 9.3."""
    options = [value for name, value in headers if name == b"connection"]
    if not options:
        return version != "1.0"
    tokens = {token.strip().lower() for value in options for token in value.split(b",")}
    if b"close" in tokens:
        return False
    return version != "1.0" or b"keep-alive" in tokens


def check_path(path: str) -> None:
    """Refuse a path that a replica might normalise into another one (RFC 3986 section 6.2).

    Names of models may hold a slash, which OpenAI's SDK encodes. They are looked up in a table, so
    there the encoded one counts as a plain one."""
    if path.startswith(_MODEL):
        path = _ENCODED_SLASH.sub("/", path)
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
    return 0 if length is None else _number(length)


def _number(length: bytes) -> int:
    if _LENGTH.fullmatch(length) is None:
        raise BadRequest("Content-Length is not a plain number.", code="bad_framing")
    return int(length)


def _check_length(length: int, limits: ListenLimits) -> None:
    if length > limits.max_body_bytes:
        raise PayloadTooLarge(f"The body is larger than {limits.max_body_bytes} bytes.")
