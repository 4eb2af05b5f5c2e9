"""The few frames that are made by hand (RFC 9113 section 4.1)."""

from __future__ import annotations

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES = 9

DATA = 0x0
HEADERS = 0x1
PRIORITY = 0x2
RST_STREAM = 0x3
SETTINGS = 0x4
PUSH_PROMISE = 0x5
PING = 0x6
GOAWAY = 0x7
WINDOW_UPDATE = 0x8
CONTINUATION = 0x9

END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4

_HIGHEST_STREAM = 2**31 - 1


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return (
        struct.pack(">I", len(payload) << 8 | kind) + struct.pack(">BI", flags, stream_id) + payload
    )


def goaway_frame(last_stream_id: int, code: int) -> bytes:
    return frame(GOAWAY, 0, 0, struct.pack(">II", last_stream_id, code))


def shutdown_frame() -> bytes:
    """The first of two GOAWAYs (section 6.8): nothing has been refused yet."""
    return goaway_frame(_HIGHEST_STREAM, 0)
