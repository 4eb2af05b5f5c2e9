from __future__ import annotations

from http2_wire import SSE, ProtocolWire
from replica_wire import Reader

from backend.config import PoolConfig
from backend.http2_connections import Http2Connections
from backend.http2_protocol import Http2Protocol
from backend.http2_stream import Http2Stream
from core.errors import UpstreamReset


class Connections(Http2Connections):
    """With a clock of their own and servers in memory."""

    def __init__(self, warm: int = 1) -> None:
        self.now = 0.0
        self.with_room_again: list[Http2Protocol] = []
        config = PoolConfig(warm=warm, max_idle_s=4.0, ping_s=5.0)
        super().__init__("r", config, lambda: self.now, self.with_room_again.append)

    def open_one(self, **options: int) -> ProtocolWire:
        wire = ProtocolWire(**options)
        wire.protocol._owner = self  # type: ignore[assignment]
        self.add(wire.open().protocol)
        return wire

    def begin(self) -> tuple[Http2Stream, Reader]:
        stream, reader = self.take(), Reader()
        assert stream is not None
        stream.send(b"POST", b"/", [], b"", reader)
        return stream, reader

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.now += 1.0
            self.tick(self.now)


def answer(wire: ProtocolWire, stream: Http2Stream) -> None:
    wire.pump()
    wire.server.respond(stream.id, SSE, True)
    wire.pump()


async def test_the_first_one_with_room() -> None:
    connections = Connections()
    assert connections.take() is None
    one, two = connections.open_one(max_streams=2), connections.open_one(max_streams=2)
    begun = [connections.begin()[0] for _ in range(3)]
    assert (one.protocol.taken, two.protocol.taken) == (2, 1)
    assert (connections.streams, connections.busy, connections.idle) == (3, 2, 0)
    assert connections.with_room == 1
    answer(one, begun[0])
    assert connections.with_room_again == [one.protocol]
    connections.begin()
    assert (one.protocol.taken, two.protocol.taken) == (2, 1)


async def test_one_that_the_replica_leaves_gets_nothing_and_is_closed_at_its_end() -> None:
    connections = Connections()
    old, new = connections.open_one(), connections.open_one()
    stream, reader = connections.begin()
    old.pump()
    old.server.goaway()
    old.pump()
    connections.begin()
    assert new.protocol.taken == 1
    assert not old.transport.closing
    answer(old, stream)
    assert reader.ended
    assert old.transport.closing


async def test_idle_ones_are_closed_but_those_that_are_kept_warm() -> None:
    connections = Connections(warm=1)
    one, two = connections.open_one(max_streams=1), connections.open_one(max_streams=1)
    (first, _), (second, _) = connections.begin(), connections.begin()
    connections.wait(10)
    answer(one, first)
    answer(two, second)
    connections.wait(3)
    assert not two.transport.closing
    connections.wait(2)
    assert (one.transport.closing, two.transport.closing) == (False, True)


async def test_a_dead_one_is_found() -> None:
    connections = Connections()
    wire = connections.open_one()
    _, reader = connections.begin()
    connections.wait(8)
    assert connections.take() is None
    connections.wait(3)
    assert isinstance(reader.error, UpstreamReset)
    assert wire.transport.aborted
    wire.protocol.connection_lost(None)
    assert len(connections) == 0


async def test_what_is_used_outlives_close_and_the_rest_does_not() -> None:
    connections = Connections()
    used, unused = connections.open_one(), connections.open_one()
    stream, reader = connections.begin()
    connections.close()
    assert (used.transport.closing, unused.transport.closing) == (False, True)
    assert connections.take() is None
    answer(used, stream)
    assert reader.ended
    assert used.transport.closing
    late = connections.open_one()
    assert late.transport.closing


async def test_close_idle() -> None:
    connections = Connections()
    used, unused = connections.open_one(max_streams=1), connections.open_one()
    connections.begin()
    connections.close_idle()
    assert (used.transport.closing, unused.transport.closing) == (False, True)


async def test_reads_are_those_of_responses_and_outlive_their_connection() -> None:
    connections = Connections()
    wire = connections.open_one()
    stream, _ = connections.begin()
    wire.pump()
    assert connections.reads == 0
    answer(wire, stream)
    assert connections.reads == 1
    wire.protocol.connection_lost(None)
    assert connections.reads == 1
    connections.lost(wire.protocol)
    assert connections.reads == 1
    assert "to r" in repr(connections)


async def test_silent_streams_fail_and_flowing_ones_of_the_same_connection_do_not() -> None:
    connections = Connections()
    wire = connections.open_one()
    (flowing, flows), (_, silent) = connections.begin(), connections.begin()
    wire.pump()
    wire.server.respond(flowing.id, SSE, False)
    wire.pump()
    before = connections.progress_of_each()
    wire.server.send(flowing.id, b"x")
    wire.pump()
    later, young = connections.begin()
    connections.fail_silent(before, "silent")
    assert isinstance(silent.error, UpstreamReset)
    assert not flows.over
    assert not young.over
    assert not wire.transport.closing
    later.abort()
