"""All connections to one replica; whatever is dialled answers in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from http2_wire import SSE, ProtocolWire
from replica_wire import Reader, Transport

from backend.config import PoolConfig, ReplicaConfig, UpstreamConfig
from backend.http1_client import Connection
from backend.http1_protocol import Http1Protocol
from backend.http2_stream import Http2Stream
from backend.request_head import RequestHead
from backend.target import Hold, Target, access_of
from core.errors import UpstreamTimeout, UpstreamUnreachable
from core.metrics import Metrics

USUAL = UpstreamConfig()
HELLO = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


class Dialler:
    """Instead of the real one: `answers` says what comes of each dial, in order, the last one for
    all that follow. `go`: dials wait until it is set."""

    may_multiplex = True

    def __init__(self, target: Target, *answers: Any) -> None:
        self.answers = list(answers)
        self.dialled = 0
        self.wires: list[ProtocolWire] = []
        self.sockets: list[Http1Protocol] = []
        self.go = asyncio.Event()
        self.go.set()
        target._dialer = self  # type: ignore[assignment]

    async def open(self, http1: Any, http2: Any) -> Any:
        self.dialled += 1
        await self.go.wait()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        if answer == "http1":
            protocol = Http1Protocol(http1, RequestHead(b"r"))
            protocol.connection_made(Transport())  # type: ignore[arg-type]
            self.sockets.append(protocol)
            return protocol
        wire = ProtocolWire(max_streams=answer)
        wire.protocol._owner = http2
        self.wires.append(wire)
        return wire.open().protocol


class Place:
    """A target with its dialler and its clock."""

    def __init__(self, *answers: Any, protocol: Any = "h2", warm: int = 0) -> None:
        self.now = 0.0
        self.metrics = Metrics.private()
        connects = self.metrics.counter("connects_total", "", ("replica", "result"))
        replica = ReplicaConfig(url="http://gpu", model="m", id="r", protocol=protocol)
        config = UpstreamConfig(pool=PoolConfig(warm=warm))
        self.target = Target(replica, config, connects, lambda: self.now, None)
        self.dialler = Dialler(self.target, *answers)

    def ask(self, fresh: bool = False) -> asyncio.Task[Hold]:
        return asyncio.ensure_future(self.target.connect(fresh))

    def connects(self, result: str) -> float:
        return self.metrics.value("connects_total", "r", result)

    def end(self, hold: Hold) -> None:
        """Let an exchange be answered."""
        assert isinstance(hold, Http2Stream)
        reader = Reader()
        hold.send(b"POST", b"/", [], b"", reader)
        for wire in self.dialler.wires:
            wire.pump()
            if hold.id in wire.at_server.heads:
                wire.server.respond(hold.id, SSE, True)
                wire.pump()
        assert reader.ended


async def rest() -> None:
    """Let all tasks come to where they wait."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_exchanges_share_a_connection() -> None:
    place = Place(100)
    holds = [await place.ask() for _ in range(10)]
    assert {type(hold) for hold in holds} == {Http2Stream}
    assert (place.dialler.dialled, place.connects("ok")) == (1, 1)
    assert place.target.count() == 1
    assert place.target.counts() == (0, 1, 10)


async def test_a_hundred_at_once_wait_for_one_dial() -> None:
    place = Place(100)
    await asyncio.gather(*(place.ask() for _ in range(100)))
    assert place.dialler.dialled == 1


async def test_a_second_connection_when_the_first_one_is_full() -> None:
    place = Place(2)
    holds = await asyncio.gather(*(place.ask() for _ in range(7)))
    assert place.dialler.dialled == 4
    assert [wire.protocol.taken for wire in place.dialler.wires] == [2, 2, 2, 1]
    for hold in holds:
        hold.abort()
    assert place.target.counts() == (4, 0, 0)


async def test_a_place_that_becomes_free_goes_to_who_waits_longest() -> None:
    place = Place(1)
    first = await place.ask()
    place.dialler.go.clear()
    second, third = place.ask(), place.ask()
    await rest()
    place.end(first)
    await rest()
    assert (second.done(), third.done()) == (True, False)
    (await second).abort()
    assert await third
    assert place.dialler.dialled == 3  # what was under way is ready for the next
    place.dialler.go.set()
    await rest()
    assert place.target.count() == 3


async def test_fresh_is_a_new_connection_but_not_one_for_each() -> None:
    place = Place(100)
    place.end(await place.ask())
    holds = await asyncio.gather(*(place.ask(fresh=True) for _ in range(20)))
    assert not any(hold.reused for hold in holds)
    assert place.dialler.dialled == 2


async def test_fresh_does_not_take_a_place_that_becomes_free() -> None:
    place = Place(1)
    first = await place.ask()
    place.dialler.go.clear()
    fresh = place.ask(fresh=True)
    await rest()
    place.end(first)
    await rest()
    assert not fresh.done()
    place.dialler.go.set()
    assert not (await fresh).reused


async def test_nobody_waits_on_a_connection_that_never_became_usable() -> None:
    error = UpstreamTimeout("", phase="connect", retryable=True)
    place = Place(error, 100)
    results = await asyncio.gather(*(place.ask() for _ in range(50)), return_exceptions=True)
    assert results == [error] * 50
    assert (place.dialler.dialled, place.connects("timeout")) == (1, 1)
    assert await place.ask()


async def test_one_dial_of_several_that_fails_is_not_the_end() -> None:
    place = Place(1, UpstreamUnreachable(""), 1)
    first = await place.ask()
    second = place.ask()
    await rest()
    assert second.done()
    assert isinstance(second.exception(), UpstreamUnreachable)
    first.abort()
    assert await place.ask()


async def test_a_replica_that_allows_no_streams_is_not_dialled_for_ever() -> None:
    place = Place(0)
    with pytest.raises(UpstreamUnreachable, match="allows no requests"):
        await place.ask()
    await rest()
    assert place.dialler.dialled == 1


@pytest.mark.parametrize("ticks", range(1, 9))
async def test_cancelled_at_any_tick_it_holds_no_place(ticks: int) -> None:
    place = Place(1)
    task = place.ask()
    for _ in range(ticks):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result().abort()
    await rest()
    assert place.target.counts() == (1, 0, 0)
    assert await place.ask()
    assert place.dialler.dialled == 1


async def test_one_that_gave_up_does_not_keep_the_next_from_its_place() -> None:
    place = Place(1)
    first = await place.ask()
    place.dialler.go.clear()
    second, third = place.ask(), place.ask()
    await rest()
    second.cancel()
    first.abort()  # in the same tick
    await rest()
    assert await third


async def test_warm_ones_are_opened_ahead_and_not_soon_after_a_failure() -> None:
    place = Place(UpstreamUnreachable(""), 1, warm=2)
    place.target.tick(0.0)
    await rest()
    assert (place.dialler.dialled, place.target.count()) == (2, 1)
    place.now = 4.0
    place.target.tick(4.0)
    await rest()
    assert place.dialler.dialled == 2
    place.now = 6.0
    place.target.tick(6.0)
    await rest()
    assert place.target.counts() == (2, 0, 0)
    await place.ask()  # full: another one is made ready
    place.target.tick(7.0)
    await rest()
    assert place.target.counts() == (2, 1, 1)


class TestAuto:
    """The replica tells in the handshake what it speaks."""

    async def test_no_http2(self) -> None:
        place = Place("http1")
        holds = await asyncio.gather(*(place.ask() for _ in range(3)))
        assert {type(hold) for hold in holds} == {Connection}
        assert place.dialler.dialled == 3
        for hold in holds:
            hold.send(b"GET", b"/", [], b"", Reader())
        for protocol in place.dialler.sockets:
            protocol.data_received(HELLO)
        again = await place.ask()
        assert again.reused
        assert place.dialler.dialled == 3

    async def test_nobody_waits_any_more_when_the_answer_comes(self) -> None:
        place = Place("http1")
        place.dialler.go.clear()
        task = place.ask()
        await rest()
        task.cancel()
        await rest()
        place.dialler.go.set()
        await rest()
        assert place.target.counts() == (1, 0, 0)

    async def test_it_comes_to_speak_http2_and_back(self) -> None:
        place = Place("http1", 100, "http1")
        one = await place.ask()
        two, three = await place.ask(), await place.ask()
        assert [type(hold) for hold in (one, two, three)] == [Connection, Http2Stream, Http2Stream]
        place.dialler.wires[0].protocol.connection_lost(None)
        assert isinstance(await place.ask(), Connection)


@pytest.mark.parametrize("answer", ["http1", 100])
async def test_close(answer: Any) -> None:
    place = Place(answer, warm=1)
    place.target.tick(0.0)
    await rest()
    used = await place.ask()
    place.dialler.go.clear()
    late = place.ask(fresh=True)
    await rest()
    place.target.close()
    if answer == "http1":
        late.cancel()
    else:
        with pytest.raises(UpstreamUnreachable, match="closing"):
            await late
    with pytest.raises(UpstreamUnreachable, match="closing"):
        await place.ask()
    used.abort()
    for wire in place.dialler.wires:
        assert wire.transport.closing
        wire.protocol.connection_lost(None)
    for protocol in place.dialler.sockets:
        protocol.connection_lost(None)
    await rest()
    assert place.target.done
    place.target.tick(60.0)
    assert place.target.done


async def test_retired_it_serves_who_has_a_place_and_keeps_nothing() -> None:
    place = Place(100, warm=1)
    place.target.tick(0.0)
    await rest()
    hold = await place.ask()
    place.target.retire()
    place.end(hold)
    place.target.tick(1.0)
    await rest()
    assert [wire.transport.closing for wire in place.dialler.wires] == [True]


def test_access_is_what_a_connection_depends_on() -> None:
    def access(upstream: UpstreamConfig = USUAL, **options: Any) -> Any:
        return access_of(ReplicaConfig(url="http://gpu", model="m", **options), upstream)

    assert access() == access(weight=2.0)
    assert access() != access(protocol="h2")
    assert access() != access(UpstreamConfig(http2_engine="h2"))
