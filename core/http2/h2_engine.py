"""The engine on h2: pure Python, strict to the letter, several times slower."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import DenialOfServiceError, H2Error
from h2.settings import SettingCodes, Settings
from hyperframe.frame import Frame, GoAwayFrame

from core.exchange import Header
from core.http2.engine import UNLIMITED, EngineOptions, ErrorCode, Http2Handler
from core.http2.frames import announced, goaway_frame, settings_of, shutdown_frame


class H2Engine:
    """See `core.http2.engine.Engine`. h2 does not hold data back, so it waits here."""

    def __init__(self, handler: Http2Handler, options: EngineOptions) -> None:
        self.over = False
        self.blocked: set[int] = set()
        self._handler = handler
        self._max_streams = 100  # until the peer's settings say otherwise
        self._ending = False  # nothing counts after the next `outgoing`
        self._closing = False  # a GOAWAY was sent or received
        self._last_stream_id: int | None = None  # what our GOAWAY said
        self._own = bytearray()  # frames that are not h2's
        self._queues: dict[int, _Queue] = {}
        self._total = 0
        client = options.role == "client"
        config = H2Configuration(client_side=client, header_encoding=None)
        self._connection = connection = H2Connection(config)
        # After a GOAWAY, either way, h2 takes the whole connection for closed.
        connection._frame_dispatch_table[GoAwayFrame] = self._receive_goaway
        announcing = cast(dict[SettingCodes, int], settings_of(options))
        connection.local_settings = Settings(client=client, initial_values=announcing)
        connection.decoder.max_header_list_size = 2 * options.max_header_bytes
        connection.initiate_connection()
        opened = options.connection_window - connection.inbound_flow_control_window
        if opened > 0:
            connection.increment_flow_control_window(opened)
        self._own += announced(connection.data_to_send(), options)

    def __repr__(self) -> str:
        return f"<H2Engine {self._total} B wait over={self.over}>"

    def receive(self, data: bytes) -> None:
        if self.over or self._ending:
            return
        try:
            found = self._connection.receive_data(data)
        except DenialOfServiceError:
            self.goaway(ErrorCode.ENHANCE_YOUR_CALM)
        except H2Error:  # h2 has written the GOAWAY
            self._ending = True
        else:
            self._tell(found)

    @property
    def pending(self) -> bool:
        mute = not (self._own or self._queues or self._closing or self._ending)
        return not mute or bool(self._connection._data_to_send)

    def outgoing(self, limit: int = UNLIMITED) -> bytes:
        if self.over:
            return b""
        if self._queues:
            self._send_queued(limit)
        data = bytes(self._own) + self._connection.data_to_send()
        self._own.clear()
        if self._ending or (self._closing and self._is_idle()):
            self.over = True
        free = self.blocked - self._queues.keys()
        self.blocked = set(self._queues)
        for stream_id in free:
            self._handler.on_writable(stream_id)
        return data

    def request(self, headers: Sequence[Header], end_stream: bool) -> int:
        connection = self._connection
        if self._closing:
            return 0
        try:
            stream_id = connection.get_next_available_stream_id()
            connection.send_headers(stream_id, list(headers), end_stream)
        except H2Error:
            return 0
        return stream_id

    def respond(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None:
        self._quietly(self._connection.send_headers, stream_id, list(headers), end_stream)

    def send(self, stream_id: int, data: bytes, end_stream: bool = False) -> None:
        queue = self._queues.get(stream_id)
        if queue is None:
            stream = self._connection.streams.get(stream_id)
            if stream is None or stream.closed:
                return
            queue = self._queues[stream_id] = _Queue()
        queue.add(data, end_stream)
        self._total += len(data)

    def waiting(self, stream_id: int) -> int:
        queue = self._queues.get(stream_id)
        return queue.size if queue is not None else 0

    def consumed(self, stream_id: int, size: int) -> None:
        self._quietly(self._connection.acknowledge_received_data, size, stream_id)

    def reset(self, stream_id: int, code: int) -> None:
        self._drop(stream_id)
        self._quietly(self._connection.reset_stream, stream_id, code)

    def ping(self) -> None:
        self._quietly(self._connection.ping, b"\0" * 8)

    def shutdown_notice(self) -> None:
        self._own += shutdown_frame()

    def goaway(self, code: int = ErrorCode.NO_ERROR) -> None:
        self._last_stream_id = self._connection.highest_inbound_stream_id
        self._own += goaway_frame(self._last_stream_id, code)
        self._closing = True
        self._ending = code != ErrorCode.NO_ERROR

    @property
    def total_waiting(self) -> int:
        return self._total

    @property
    def max_streams(self) -> int:
        return self._max_streams

    # --- inside

    def _quietly(self, call: Callable[..., object], *arguments: object) -> None:
        try:
            call(*arguments)
        except H2Error:  # the stream or the connection is gone
            return

    def _is_idle(self) -> bool:
        connection = self._connection
        return not connection.open_inbound_streams and not connection.open_outbound_streams

    def _drop(self, stream_id: int) -> None:
        queue = self._queues.pop(stream_id, None)
        if queue is not None:
            self._total -= queue.size

    def _send_queued(self, limit: int) -> None:
        """One frame of each stream in turn, as long as windows and `limit` allow."""
        progress = True
        while progress and limit > 0:
            progress = False
            for stream_id, queue in list(self._queues.items()):
                before = queue.size
                try:
                    sent = self._send_frame(stream_id, queue, limit)
                except H2Error:  # the stream is gone
                    self._drop(stream_id)
                    continue
                limit -= before - queue.size
                progress = progress or sent
                if sent and not queue.size:
                    del self._queues[stream_id]
                elif sent:  # to the end of the line
                    self._queues[stream_id] = self._queues.pop(stream_id)
                if limit <= 0:
                    break

    def _send_frame(self, stream_id: int, queue: _Queue, limit: int) -> bool:
        connection = self._connection
        window = connection.local_flow_control_window(stream_id)
        size = min(window, connection.max_outbound_frame_size, limit)
        if queue.size and size <= 0:
            return False
        data = queue.take(size)
        self._total -= len(data)
        connection.send_data(stream_id, data, end_stream=queue.ended and not queue.size)
        return True

    def _receive_goaway(self, frame: GoAwayFrame) -> tuple[list[Frame], list[events.Event]]:
        self._closing = True
        event = events.ConnectionTerminated()
        event.last_stream_id = frame.last_stream_id
        event.error_code = frame.error_code
        return [], [event]

    def _tell(self, found: list[events.Event]) -> None:
        """DATA frames of one stream that follow each other are told as one."""
        handler = self._handler
        stream_id, ended = 0, False
        parts: list[bytes] = []
        for event in found:
            if type(event) is events.DataReceived:
                assert event.data is not None
                assert event.flow_controlled_length is not None
                padding = event.flow_controlled_length - len(event.data)
                if padding:
                    self.consumed(event.stream_id, padding)
                if event.stream_id != stream_id:
                    if stream_id:
                        handler.on_data(stream_id, b"".join(parts), ended)
                    stream_id, parts = event.stream_id, []
                parts.append(event.data)
                ended = event.stream_ended is not None
                continue
            if type(event) is events.WindowUpdated or type(event) is events.StreamEnded:
                continue
            if stream_id:
                handler.on_data(stream_id, b"".join(parts), ended)
                stream_id, parts, ended = 0, [], False
            tell = _TELL.get(type(event))
            if tell is not None:
                tell(self, event)
        if stream_id:
            handler.on_data(stream_id, b"".join(parts), ended)

    def _on_request(self, event: events.RequestReceived) -> None:
        last = self._last_stream_id
        if last is not None and event.stream_id > last:
            self.reset(event.stream_id, ErrorCode.REFUSED_STREAM)
            return
        self._on_head(event)

    def _on_head(self, event: events.RequestReceived | events.ResponseReceived) -> None:
        ended = event.stream_ended is not None
        self._handler.on_head(event.stream_id, event.headers or (), ended)

    def _on_trailers(self, event: events.TrailersReceived) -> None:
        self._handler.on_trailers(event.stream_id)

    def _on_reset(self, event: events.StreamReset) -> None:
        self._drop(event.stream_id)
        self._handler.on_reset(event.stream_id, int(event.error_code or 0), event.remote_reset)

    def _on_settings(self, event: events.RemoteSettingsChanged) -> None:
        allowed = self._connection.remote_settings.max_concurrent_streams
        self._max_streams = min(allowed, UNLIMITED)
        self._handler.on_settings()

    def _on_settings_answered(self, event: events.SettingsAcknowledged) -> None:
        self._handler.on_settings_answered()

    def _on_ping_answered(self, event: events.PingAckReceived) -> None:
        self._handler.on_ping_answered()

    def _on_goaway(self, event: events.ConnectionTerminated) -> None:
        self._handler.on_goaway(event.last_stream_id or 0, int(event.error_code or 0))


class _Queue:
    """Body bytes of one stream that wait for their windows."""

    __slots__ = ("_parts", "ended", "size")

    def __init__(self) -> None:
        self._parts: deque[bytes] = deque()
        self.size = 0
        self.ended = False

    def add(self, data: bytes, ended: bool) -> None:
        if data:
            self._parts.append(data)
            self.size += len(data)
        self.ended = self.ended or ended

    def take(self, size: int) -> bytes:
        """The next bytes, at most `size`."""
        taken: list[bytes] = []
        while self._parts and size > 0:
            part = self._parts.popleft()
            if len(part) > size:
                self._parts.appendleft(part[size:])
                part = part[:size]
            taken.append(part)
            size -= len(part)
            self.size -= len(part)
        return b"".join(taken)


_TELL: dict[type, Callable[..., None]] = {
    events.RequestReceived: H2Engine._on_request,
    events.ResponseReceived: H2Engine._on_head,
    events.TrailersReceived: H2Engine._on_trailers,
    events.StreamReset: H2Engine._on_reset,
    events.RemoteSettingsChanged: H2Engine._on_settings,
    events.SettingsAcknowledged: H2Engine._on_settings_answered,
    events.PingAckReceived: H2Engine._on_ping_answered,
    events.ConnectionTerminated: H2Engine._on_goaway,
}
