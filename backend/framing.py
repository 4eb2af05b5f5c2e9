"""What a response's head may be, and what it says about the body (RFC 9112 section 6.3). Pure.

llhttp refuses bad tokens, control characters, bare CR or LF, folded lines and doubled or
contradicting lengths; what it lets pass is refused here. Of the HTTP/2 engines the most is not
expected: what reaches a client's HTTP/1.1 head is checked here whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from core.exchange import Header

HEAD_BYTES = 64 * 1024
"""Bound on a head, and on any other bytes (trailers, chunk extensions) without a body byte."""
HEADERS = 200
INFORMATIONAL = 8
"""How many 1xx responses may come before the final one."""
EMPTY_BODY = (204, 304)

_STATUS = re.compile(rb"[2-5][0-9]{2}")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")  # RFC 9113 section 8.2.1: in lower case
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_OF_A_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)


class Refused(Exception):
    """A response that is not accepted; `str()` says what is wrong with it, in our words."""


class Head(NamedTuple):
    """A response's head; `sized`: the headers tell where the body ends. An interim one has none."""

    status: int
    headers: tuple[Header, ...]
    sized: bool


@lru_cache(maxsize=32)
def read_head(block: bytes) -> Head:
    """The head in `block`, which llhttp has passed: from the status line up to the empty line.

    Raises Refused. Remembered, because a replica's heads are the same until the second changes:
    a look-up costs a tenth of taking the lines apart.
    """
    start, *lines = block.split(b"\r\n")
    # llhttp also takes RTSP/ and ICE/, and empty lines before the status line.
    if not start.startswith(b"HTTP/") or not start[9:12].isdigit():
        raise Refused("it does not start with HTTP/")
    if len(lines) > HEADERS:
        raise Refused("it has too many headers")
    status, version = int(start[9:12]), start[5:8].decode("latin-1")
    if not check_head(status, version):
        return Head(status, (), False)
    parts = [line.partition(b":") for line in lines]
    headers = tuple([(name.lower(), value.strip(b" \t")) for name, _, value in parts])
    return Head(status, headers, body_is_sized(headers, version))


def check_head(status: int, version: str) -> bool:
    """True for a final response, False for an interim one. Raises Refused."""
    if version not in ("1.1", "1.0"):
        raise Refused("its version is not HTTP/1.1")
    if status == 101:
        raise Refused("it switches protocols although nobody asked")
    if not 100 <= status <= 599:
        raise Refused("its status is out of range")
    return status >= 200


def body_is_sized(headers: Sequence[Header], version: str) -> bool:
    """Whether the headers tell where the body ends; otherwise the connection's end does.

    Raises Refused for a transfer coding that only hides the body's end or its contents.
    """
    sized = False
    for name, value in headers:
        if name == b"content-length":
            sized = True
        elif name == b"transfer-encoding":
            if value.lower() != b"chunked" or version == "1.0":
                raise Refused("its transfer coding is not plain chunked")
            sized = True
    return sized


@lru_cache(maxsize=32)
def read_http2_head(headers: tuple[Header, ...]) -> tuple[int, tuple[Header, ...]]:
    """Status and fields of a final response over HTTP/2 (RFC 9113 section 8.2).

    Raises Refused. Remembered as in `read_head`.
    """
    if not headers or headers[0][0] != b":status" or not _STATUS.fullmatch(headers[0][1]):
        raise Refused("it has no status of a final response")
    fields = headers[1:]
    if len(fields) > HEADERS:
        raise Refused("it has too many headers")
    if sum(len(name) + len(value) + 4 for name, value in fields) > HEAD_BYTES:
        raise Refused("its header block is too large")
    for name, value in fields:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise Refused("a header is not of the characters that it may have")
        if name in _OF_A_CONNECTION:
            raise Refused("it has a header of HTTP/1.1 connections")
    return int(headers[0][1]), tuple([(name, value.strip(b" \t")) for name, value in fields])
