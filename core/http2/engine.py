"""The seam between an HTTP/2 connection and the library that speaks its frames (RFC 9113).

An engine does no I/O: bytes that arrived go into `receive`, which calls the handler for whatever
they mean; bytes to send come out of `outgoing`. One engine is one connection in one role. Stream
ids are as on the wire. All sizes are bytes. No method raises because of what the peer does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, Protocol

from core.exchange import Header

Role = Literal["client", "server"]
UNLIMITED = 2**31 - 1


class ErrorCode(IntEnum):
    """RFC 9113 section 7."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class Setting(IntEnum):
    """RFC 9113 section 6.5.2, RFC 9218 section 2.1."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6
    NO_RFC7540_PRIORITIES = 0x9


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What is announced to the peer. `max_streams`: how many streams a client may have open; the
    handler refuses those above it, while the engine ends a connection that has twice as many.
    Header blocks of twice `max_header_bytes` end the connection as well."""

    role: Role
    stream_window: int = 262_144
    connection_window: int = 1_048_576
    max_streams: int = 100
    max_header_bytes: int = 65_536


class Http2Handler(Protocol):
    """Who is told what arrived. May call the engine back, but not `receive` or `outgoing`."""

    def on_head(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None:
        """A request (server) or the final response (client), pseudo-header fields included."""

    def on_data(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        """Body bytes. The windows stay shut by their size until `consumed` is called."""

    def on_trailers(self, stream_id: int) -> None:
        """Trailers, which also end the stream. Their fields are dropped."""

    def on_reset(self, stream_id: int, code: int, by_peer: bool) -> None:
        """The peer reset the stream, or the engine did because the peer broke a rule of it. The
        stream may be one that the handler never heard of."""

    def on_writable(self, stream_id: int) -> None:
        """All that was handed to `send` for this stream has left `outgoing`. Called only for a
        stream that had bytes waiting when `outgoing` returned before."""

    def on_ping_answered(self) -> None: ...

    def on_settings(self) -> None:
        """The peer's settings arrived (`max_streams` may have changed)."""

    def on_settings_answered(self) -> None:
        """The peer acknowledged ours."""

    def on_goaway(self, last_stream_id: int, code: int) -> None:
        """The peer takes no new streams; those above `last_stream_id` were not acted upon."""


class Engine(Protocol):
    """One HTTP/2 connection. Calls for a stream that is gone do nothing."""

    over: bool
    """Nothing more can come of this connection (the peer broke its rules, or all streams have
    ended after a GOAWAY). Write what `outgoing` returned last, then close it."""
    blocked: set[int]
    """The streams that had bytes waiting when `outgoing` last returned. Only to be looked at."""

    def receive(self, data: bytes) -> None: ...

    @property
    def pending(self) -> bool:
        """Whether `outgoing` may have something; False costs less than a b"" from it."""

    def outgoing(self, limit: int = UNLIMITED) -> bytes:
        """What may be sent now, at most about `limit` bytes of it; b"" when nothing. Streams take
        turns. May call `on_writable` and `on_reset`."""

    def request(self, headers: Sequence[Header], end_stream: bool) -> int:
        """Client: begin a stream; returns its id, 0 when the connection takes none any more.
        Pseudo-header fields come first. The caller heeds `max_streams`."""

    def respond(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None:
        """Server: the head of the final response, `:status` first."""

    def send(self, stream_id: int, data: bytes, end_stream: bool = False) -> None:
        """Body bytes, after the head; what flow control does not allow yet waits inside."""

    def waiting(self, stream_id: int) -> int:
        """How many bytes of the stream wait inside."""

    def consumed(self, stream_id: int, size: int) -> None:
        """These bytes of `on_data` are dealt with: the peer may send as many more. To be called
        for streams that are gone too, since the connection's window counts them."""

    def reset(self, stream_id: int, code: int) -> None:
        """RST_STREAM; what waits is dropped. `on_reset` is not called for it."""

    def ping(self) -> None: ...

    def shutdown_notice(self) -> None:
        """Server: GOAWAY with the highest id: no new streams, please (RFC 9113 section 6.8)."""

    def goaway(self, code: int = ErrorCode.NO_ERROR) -> None:
        """GOAWAY with the last stream that arrived; streams go on. When `code` is an error the
        connection is `over` after the next `outgoing`."""

    @property
    def total_waiting(self) -> int:
        """How many bytes of all streams wait inside."""

    @property
    def max_streams(self) -> int:
        """How many streams the peer allows us to have open."""
