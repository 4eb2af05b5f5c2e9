"""The few frames that are made by hand (RFC 9113 section 4.1), and what the first announces."""

from __future__ import annotations

import struct

from core.http2.engine import EngineOptions, Setting

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


def settings_of(options: EngineOptions) -> dict[int, int]:
    """What the engine's library is to announce; see `announced`."""
    settings: dict[int, int] = {
        Setting.INITIAL_WINDOW_SIZE: options.stream_window,
        Setting.MAX_HEADER_LIST_SIZE: options.max_header_bytes,
    }
    if options.role == "client":
        settings[Setting.ENABLE_PUSH] = 0
    else:
        settings[Setting.MAX_CONCURRENT_STREAMS] = 2 * options.max_streams
        settings[Setting.NO_RFC7540_PRIORITIES] = 1
    return settings


def announced(first: bytes, options: EngineOptions) -> bytes:
    """The first bytes to send. The libraries end a connection that opens one stream too many;
    RFC 9113 section 5.1.2 has that stream refused instead, which is the handler's work. So they
    believe that twice as many were announced."""
    believed = struct.pack(">HI", Setting.MAX_CONCURRENT_STREAMS, 2 * options.max_streams)
    told = struct.pack(">HI", Setting.MAX_CONCURRENT_STREAMS, options.max_streams)
    return first.replace(believed, told, 1) if options.role == "server" else first
