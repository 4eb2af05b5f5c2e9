"""The engine on libnghttp2 (through ngh2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ngh2
from ngh2 import events

from core.exchange import Header
from core.http2.engine import UNLIMITED, EngineOptions, ErrorCode, Http2Handler, Setting
from core.http2.frames import announced, goaway_frame, settings_of

_MANY_HEADERS = 1024  # fields of one block; the handler refuses less politely long before
_ROUND_ROBIN = ngh2.Priority(urgency=3, incremental=True)
_ROLES = {"client": ngh2.Role.CLIENT, "server": ngh2.Role.SERVER}


class Nghttp2Engine:
    """See `core.http2.engine.Engine`. Window updates are sent when the handler has consumed half
    of a window, never by libnghttp2 alone."""

    def __init__(self, handler: Http2Handler, options: EngineOptions) -> None:
        self.over = False
        self.blocked: set[int] = set()
        self._handler = handler
        self._settings_came = False
        self._max_streams = 100  # until the peer's settings say otherwise
        self._given_up = False  # by libnghttp2, which must not be called any more then
        self._last_words = b""  # what is sent after that
        self._last_stream_id = 0
        self._ending = False
        self._rare = True  # `_finish` has something to do
        self._sent: set[int] = set()
        self._reset_here: set[int] = set()
        self._reset_there = 0  # the stream that the peer has just reset
        self._connection = connection = ngh2.Connection(
            _ROLES[options.role],
            ngh2.Configuration(
                auto_window_update=False,
                max_inbound_header_list_size=2 * options.max_header_bytes,
                max_inbound_header_count=_MANY_HEADERS,
            ),
        )
        self._queue_data = connection.send_data
        self._data_to_send = connection.data_to_send
        self._events = connection.events
        self._queued = connection.queued_body_size
        connection.initiate_connection(settings_of(options))
        connection.set_local_window_size(options.connection_window)
        self._first = announced(self._data_to_send(), options)

    def __repr__(self) -> str:
        return f"<Nghttp2Engine {len(self.blocked)} blocked over={self.over}>"

    def receive(self, data: bytes) -> None:
        if self.over or self._given_up:
            return
        try:
            self._connection.receive_data(data)
        except ngh2.DenialOfServiceError:
            self._give_up(ErrorCode.ENHANCE_YOUR_CALM)
        except ngh2.NGH2Error:
            self._give_up(ErrorCode.PROTOCOL_ERROR)
        found = self._events()
        if found:
            self._tell(found)

    @property
    def pending(self) -> bool:
        if self._given_up:
            return bool(self._last_words)
        return self._rare or self._connection.want_write

    def outgoing(self, limit: int = UNLIMITED) -> bytes:
        if self._given_up:
            data, self._last_words, self.over = self._last_words, b"", True
            return data
        try:
            data = self._data_to_send(limit)
        except ngh2.NGH2Error:
            self._give_up(ErrorCode.INTERNAL_ERROR)
            return self.outgoing()
        found = self._events()
        if found:
            self._tell(found)
        if self._sent or self.blocked:
            if self._queued() or self.blocked:
                self._note_blocked()
            else:
                self._sent.clear()
        if self._rare:
            data = self._finish(data, limit)
        return data

    def request(self, headers: Sequence[Header], end_stream: bool) -> int:
        try:
            return self._connection.send_request(headers, end_stream=end_stream)
        except ngh2.NGH2Error:
            return 0

    def respond(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None:
        connection = self._connection
        try:
            connection.set_stream_priority(stream_id, _ROUND_ROBIN, ignore_client_signal=True)
            connection.send_response(stream_id, headers, end_stream=end_stream)
        except ngh2.NGH2Error:
            return

    def send(self, stream_id: int, data: bytes, end_stream: bool = False) -> None:
        try:
            self._queue_data(stream_id, data, end_stream=end_stream)
        except ngh2.NGH2Error:
            return
        self._sent.add(stream_id)

    def waiting(self, stream_id: int) -> int:
        return self._queued(stream_id)

    def consumed(self, stream_id: int, size: int) -> None:
        try:
            self._connection.acknowledge_received_data(size, stream_id)
        except (ngh2.NGH2Error, ValueError):
            return

    def reset(self, stream_id: int, code: int) -> None:
        try:
            self._connection.reset_stream(stream_id, code)
        except ngh2.NGH2Error:
            return
        self._reset_here.add(stream_id)
        self._rare = True

    def ping(self) -> None:
        self._quietly(self._connection.ping)

    def shutdown_notice(self) -> None:
        self._quietly(self._connection.send_shutdown_notice)

    def goaway(self, code: int = ErrorCode.NO_ERROR) -> None:
        if code == ErrorCode.NO_ERROR:
            self._quietly(self._connection.send_goaway)
        else:
            self._quietly(self._connection.send_goaway, code)
            self._ending = self._rare = True

    @property
    def total_waiting(self) -> int:
        return self._queued()

    @property
    def max_streams(self) -> int:
        return self._max_streams

    # --- inside

    def _finish(self, data: bytes, limit: int) -> bytes:
        """What is seldom to be done after `outgoing`: the first one, resets, the end."""
        self._rare = False
        if self._first:
            data, self._first = self._first + data, b""
        if self._reset_here:
            if len(data) < limit:
                self._reset_here.clear()
            else:
                self._rare = True
        if self._ending:
            self.over = True
        return data

    def _quietly(self, call: Callable[..., object], *arguments: object) -> None:
        try:
            call(*arguments)
        except ngh2.NGH2Error:  # the connection is ending anyway
            return

    def _give_up(self, code: int) -> None:
        self._given_up = True
        self._last_words = goaway_frame(self._last_stream_id, code)

    def _note_blocked(self) -> None:
        queued, blocked = self._queued, self.blocked
        free = [stream_id for stream_id in blocked if not queued(stream_id)]
        blocked.difference_update(free)
        blocked.update(stream_id for stream_id in self._sent if queued(stream_id))
        self._sent.clear()
        for stream_id in free:
            self._handler.on_writable(stream_id)

    def _tell(self, found: list[ngh2.Event]) -> None:
        """DATA frames of one stream that follow each other are told as one."""
        handler = self._handler
        stream_id, ended = 0, False
        parts: list[bytes] = []
        for event in found:
            if type(event) is events.DataReceived:
                if event.stream_id != stream_id or ended:
                    if stream_id:
                        handler.on_data(stream_id, b"".join(parts), ended)
                    stream_id, parts = event.stream_id, []
                parts.append(event.data)
                ended = event.end_stream
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
        self._last_stream_id = event.stream_id
        self._handler.on_head(event.stream_id, event.headers, event.end_stream)

    def _on_response(self, event: events.ResponseReceived) -> None:
        self._handler.on_head(event.stream_id, event.headers, event.end_stream)

    def _on_trailers(self, event: events.TrailersReceived) -> None:
        self._handler.on_trailers(event.stream_id)

    def _on_reset(self, event: events.StreamReset) -> None:
        self._reset_there = event.stream_id  # its StreamClosed follows
        self._handler.on_reset(event.stream_id, event.error_code, True)

    def _on_closed(self, event: events.StreamClosed) -> None:
        stream_id = event.stream_id
        known = stream_id in self._reset_here or stream_id == self._reset_there
        if event.error_code and not known:
            self._handler.on_reset(event.stream_id, event.error_code, False)

    def _on_settings(self, event: events.SettingsReceived) -> None:
        before = self._max_streams if self._settings_came else UNLIMITED
        self._settings_came = True
        self._max_streams = event.settings.get(Setting.MAX_CONCURRENT_STREAMS, before)
        self._handler.on_settings()

    def _on_settings_answered(self, event: events.SettingsAcknowledged) -> None:
        self._handler.on_settings_answered()

    def _on_ping_answered(self, event: events.PingAcknowledged) -> None:
        self._handler.on_ping_answered()

    def _on_goaway(self, event: events.GoAwayReceived) -> None:
        self._handler.on_goaway(event.last_stream_id, event.error_code)

    def _on_over(self, event: events.ConnectionClosed) -> None:
        self.over = True


_TELL: dict[type, Callable[..., None]] = {
    events.RequestReceived: Nghttp2Engine._on_request,
    events.ResponseReceived: Nghttp2Engine._on_response,
    events.TrailersReceived: Nghttp2Engine._on_trailers,
    events.StreamReset: Nghttp2Engine._on_reset,
    events.StreamClosed: Nghttp2Engine._on_closed,
    events.SettingsReceived: Nghttp2Engine._on_settings,
    events.SettingsAcknowledged: Nghttp2Engine._on_settings_answered,
    events.PingAcknowledged: Nghttp2Engine._on_ping_answered,
    events.GoAwayReceived: Nghttp2Engine._on_goaway,
    events.ConnectionClosed: Nghttp2Engine._on_over,
}
