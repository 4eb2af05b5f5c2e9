"""A connection with its doubles: transport and server in memory, owner and handlers recording."""

from __future__ import annotations

import asyncio

import pytest
from http2_wire import SSE, ProtocolWire
from hypothesis import given
from hypothesis import strategies as st
from replica_wire import Reader

from backend.framing import HEAD_BYTES
from backend.http2_protocol import WRITE_BYTES
from core.errors import UpstreamProtocolError, UpstreamReset, UpstreamUnreachable
from core.http2 import frames
from core.http2.engine import ErrorCode

INTERIM = frames.frame(frames.HEADERS, frames.END_HEADERS, 1, b"\x08\x03103")  # :status: 103
PING_ANSWER = frames.frame(frames.PING, frames.ACK, 0, b"\0" * 8)


async def test_usable_once_the_settings_are_there() -> None:
    wire = ProtocolWire()
    wire.protocol.connection_made(wire.transport)  # type: ignore[arg-type]
    assert (wire.transport.writes, wire.protocol.room) == (1, 0)
    assert not wire.protocol.opened.done()
    wire.pump()
    assert wire.protocol.opened.done()
    assert wire.protocol.room == 100


async def test_one_write_for_a_request() -> None:
    wire = ProtocolWire().open()
    before = wire.transport.writes
    wire.request(b"{}" * 1000)
    assert wire.transport.writes == before + 1


async def test_what_is_sent_while_bytes_arrive_goes_out_once() -> None:
    wire = ProtocolWire().open()
    (stream, reader), (other, _) = wire.request(), wire.request()
    reader.on_each_body = other.abort
    before = wire.transport.writes
    wire.server.respond(stream.id, SSE, False)
    wire.server.send(stream.id, b"x")
    wire.pump()
    assert wire.transport.writes == before + 1
    assert wire.at_server.resets == [(other.id, ErrorCode.CANCEL, True)]


async def test_the_owner_hears_of_every_end() -> None:
    wire = ProtocolWire(max_streams=1).open()
    stream, _ = wire.request()
    assert (wire.protocol.room, wire.protocol.taken) == (0, 1)
    changes = wire.changes
    wire.server.respond(stream.id, [(b":status", b"204")], True)
    wire.pump()
    assert wire.changes > changes
    assert (wire.protocol.room, wire.protocol.taken, wire.protocol.served) == (1, 0, 1)


@pytest.mark.parametrize("eof", [True, False])
async def test_a_lost_connection_fails_its_streams(eof: bool) -> None:
    wire = ProtocolWire().open()
    (answered, one), (_, two) = wire.request(), wire.request()
    wire.server.respond(answered.id, SSE, False)
    wire.pump()
    if eof:
        wire.protocol.eof_received()
    wire.protocol.connection_lost(None)
    for reader, expected in ((one, True), (two, False)):
        assert isinstance(reader.error, UpstreamReset)
        assert (reader.error.reused, reader.error.answered) == (False, expected)
    assert (wire.losses, wire.protocol.taken, wire.protocol.room) == (1, 0, 0)


async def test_a_connection_lost_between_taking_and_sending() -> None:
    wire = ProtocolWire().open()
    stream, reader = wire.protocol.take("r"), Reader()
    wire.protocol.connection_lost(None)
    stream.send(b"POST", b"/", [], b"", reader)
    assert not reader.over  # never from inside `send`
    await asyncio.sleep(0)
    assert isinstance(reader.error, UpstreamReset)
    assert not reader.error.answered
    assert wire.protocol.taken == 0
    stream.abort()
    assert wire.protocol.taken == 0


async def test_lost_before_it_was_usable() -> None:
    wire = ProtocolWire()
    wire.protocol.connection_made(wire.transport)  # type: ignore[arg-type]
    wire.protocol.connection_lost(None)
    with pytest.raises(UpstreamUnreachable):
        await wire.protocol.opened


@pytest.mark.parametrize("client", ["nghttp2", "h2"])
async def test_a_server_that_speaks_something_else(client: str) -> None:
    wire = ProtocolWire(client)  # type: ignore[arg-type]
    wire.protocol.connection_made(wire.transport)  # type: ignore[arg-type]
    page = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n" + b"<br>" * 100
    for _ in range(200):  # which h2 takes for the start of a very long frame
        wire.protocol.data_received(page)
    with pytest.raises(UpstreamProtocolError, match="does not speak HTTP/2"):
        await wire.protocol.opened
    assert wire.transport.closing


async def test_a_broken_rule_fails_all_streams_and_says_goodbye() -> None:
    wire = ProtocolWire().open()
    readers = [wire.request()[1] for _ in range(3)]
    wire.protocol.data_received(frames.frame(frames.DATA, 0, 0, b"on stream 0"))
    assert all(isinstance(reader.error, UpstreamProtocolError) for reader in readers)
    assert wire.at_server.goaways == [(0, ErrorCode.PROTOCOL_ERROR)]
    assert wire.transport.closing
    wire.protocol.data_received(b"more")
    wire.protocol.connection_lost(None)
    assert wire.losses == 1


@pytest.mark.parametrize("noise", [INTERIM, frames.frame(frames.PING, 0, 0, b"\0" * 8)])
async def test_a_flood_without_an_answer_is_cut(noise: bytes) -> None:
    wire = ProtocolWire().open()
    _, reader = wire.request()
    sent = 0
    while not reader.over:
        wire.protocol.data_received(noise * 16)
        sent += len(noise) * 16
        assert sent < HEAD_BYTES + 1000
    assert isinstance(reader.error, UpstreamProtocolError)
    assert wire.transport.closing


async def test_a_little_noise_now_and_then_is_not_cut() -> None:
    wire = ProtocolWire().open()
    stream, reader = wire.request()
    for second in range(20):
        wire.protocol.data_received(INTERIM * (HEAD_BYTES // 2 // len(INTERIM)))
        wire.protocol.check(float(second), 5.0)
    wire.server.respond(stream.id, SSE, True)
    wire.pump()
    assert reader.ended


class TestLiveness:
    async def test_silence_is_asked_about_and_ends_the_connection(self) -> None:
        wire = ProtocolWire().open()
        _, reader = wire.request()
        for second in range(5):
            wire.protocol.check(float(second), 5.0)
            assert wire.protocol.room > 0
        wire.protocol.check(5.0, 5.0)
        assert wire.server.outgoing() == PING_ANSWER  # and is never delivered
        assert wire.protocol.room > 0
        wire.protocol.check(6.0, 5.0)
        assert wire.protocol.room == 0
        assert not reader.over
        wire.protocol.check(10.0, 5.0)
        assert isinstance(reader.error, UpstreamReset)
        assert wire.transport.aborted

    async def test_an_answer_makes_room_again(self) -> None:
        wire = ProtocolWire().open()
        for second in range(7):
            wire.protocol.check(float(second), 5.0)
        assert wire.protocol.room == 0
        changes = wire.changes
        wire.pump()
        wire.protocol.check(7.0, 5.0)
        assert wire.protocol.room > 0
        assert wire.changes > changes

    async def test_not_before_it_is_usable(self) -> None:
        wire = ProtocolWire()
        wire.protocol.connection_made(wire.transport)  # type: ignore[arg-type]
        for second in range(60):
            wire.protocol.check(float(second), 5.0)
        assert not wire.transport.closing  # whoever dials has a deadline


async def test_a_congested_connection_takes_no_more() -> None:
    wire = ProtocolWire().open()
    wire.protocol.pause_writing()
    assert wire.protocol.room == 0
    _, reader = wire.request()
    assert wire.at_server.heads == {}  # what was under way waits in the engine
    changes = wire.changes
    wire.protocol.resume_writing()
    assert wire.protocol.room > 0
    assert wire.changes > changes
    assert list(wire.at_server.heads) == [1]
    assert not reader.over


async def test_a_large_body_leaves_in_pieces() -> None:
    wire = ProtocolWire(stream_window=1_000_000).open()
    before = wire.transport.writes
    wire.request(b"x" * 500_000)
    assert wire.transport.writes - before > 500_000 / WRITE_BYTES


@pytest.mark.parametrize("client", ["nghttp2", "h2"])
async def test_leaving_waits_for_the_last_stream(client: str) -> None:
    wire = ProtocolWire(client).open()  # type: ignore[arg-type]
    stream, reader = wire.request()
    wire.protocol.leave()
    assert (wire.protocol.room, wire.transport.closing) == (0, False)
    wire.server.respond(stream.id, SSE, True)
    wire.pump()
    assert reader.ended
    wire.protocol.leave()  # as the owner does, told of the end
    assert wire.transport.closing
    assert not wire.transport.aborted
    assert wire.at_server.goaways == [(0, ErrorCode.NO_ERROR)]


async def test_a_stream_that_is_failed_is_reset() -> None:
    wire = ProtocolWire().open()
    (stream, reader), (_, other) = wire.request(), wire.request()
    wire.protocol.fail(stream, stream.lost("silent"))
    assert isinstance(reader.error, UpstreamReset)
    assert wire.at_server.resets == [(stream.id, ErrorCode.CANCEL, True)]
    assert not other.over
    assert wire.protocol.streams != []
    assert "open" in repr(wire.protocol)


KINDS = st.sampled_from(range(12))
FRAMES = st.lists(
    st.builds(
        frames.frame,
        KINDS,
        st.integers(0, 255),
        st.sampled_from([0, 1, 2, 3, 5, 99]),
        st.one_of(st.binary(max_size=40), st.sampled_from([b"\x88", b"\0" * 8, b"\0\0\0\1"])),
    ),
    max_size=8,
)


@given(sent=FRAMES, client=st.sampled_from(["nghttp2", "h2"]))
def test_no_frames_break_anything_but_the_connection(sent: list[bytes], client: str) -> None:
    """Whatever comes, each handler is told one end at the most, and nothing is left behind."""

    async def play() -> None:
        wire = ProtocolWire(client).open()  # type: ignore[arg-type]
        readers = [wire.request()[1] for _ in range(3)]
        for frame in sent:
            if not wire.transport.closing:
                wire.protocol.data_received(frame)
        wire.protocol.connection_lost(None)
        assert all(reader.over for reader in readers)
        assert (wire.protocol.taken, wire.protocol.room) == (0, 0)

    asyncio.run(play())


async def test_progress_is_responses_only() -> None:
    wire = ProtocolWire().open()
    stream, _ = wire.request()
    before = wire.protocol.progress
    wire.protocol.data_received(PING_ANSWER)
    assert wire.protocol.progress == before
    wire.server.respond(stream.id, SSE, False)
    wire.server.send(stream.id, b"x")
    wire.pump()
    assert wire.protocol.progress == before + 2
