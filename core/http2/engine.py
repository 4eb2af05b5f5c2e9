"""The seam between an HTTP/2 connection and the library that speaks its frames (RFC 9113).

An engine does no I/O: bytes that arrived go into `receive`, which calls the handler for whatever
they mean; bytes to send come out of `outgoing`. One engine is one connection in one role. Stream
ids are as on the wire. All sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol

from core.exchange import Header


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


class Http2Broken(Exception):
    """The connection cannot go on: what is left in `outgoing` (a GOAWAY) is sent, then it is
    closed."""


class Http2Handler(Protocol):
    """Who is told what arrived. May call the engine back, but not `receive`."""

    def on_head(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None:
        """A request (server) or the final response (client), pseudo-header fields included."""

    def on_data(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        """Body bytes. The window stays shut by their size until `consumed` is called."""

    def on_trailers(self, stream_id: int) -> None:
        """Trailers, which also end the stream. Their fields are dropped."""

    def on_reset(self, stream_id: int, code: int) -> None:
        """The peer reset the stream, or the engine did because the peer broke a rule of it."""

    def on_writable(self, stream_id: int) -> None:
        """All that was handed to `send` for this stream has left `outgoing`."""

    def on_ping_answered(self) -> None: ...

    def on_settings(self) -> None:
        """The peer's settings arrived (`max_streams` may have changed)."""

    def on_goaway(self, last_stream_id: int, code: int) -> None:
        """The peer takes no new streams; those above `last_stream_id` were not acted upon."""


class Engine(Protocol):
    """One HTTP/2 connection. Calls for a stream that is gone do nothing."""

    def receive(self, data: bytes) -> None:
        """Raises Http2Broken when the peer broke the protocol of the connection."""

    def outgoing(self) -> bytes:
        """Everything that may be sent now; b"" when nothing."""

    def request(self, headers: Sequence[Header], end_stream: bool) -> int:
        """Client: begin a stream; returns its id. Pseudo-header fields come first."""

    def respond(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None:
        """Server: the head of the final response, `:status` first."""

    def send(self, stream_id: int, data: bytes, end_stream: bool = False) -> None:
        """Body bytes; what flow control does not allow yet waits inside."""

    def waiting(self, stream_id: int) -> int:
        """How many bytes of the stream wait inside."""

    def consumed(self, stream_id: int, size: int) -> None:
        """These bytes of `on_data` are dealt with: the peer may send as many more."""

    def reset(self, stream_id: int, code: int) -> None: ...

    def ping(self) -> None: ...

    def shutdown_notice(self) -> None:
        """Server: GOAWAY with the highest id: no new streams, please (RFC 9113 section 6.8)."""

    def goaway(self, code: int = ErrorCode.NO_ERROR, last_stream_id: int | None = None) -> None:
        """GOAWAY; streams up to the last id go on."""

    @property
    def max_streams(self) -> int:
        """How many streams the peer allows us to have open."""
