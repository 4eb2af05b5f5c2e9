from __future__ import annotations

import asyncio
from typing import Any

import pytest
from http2_wire import SSE, ProtocolWire
from replica_wire import Transport

from backend.asker import Asker
from backend.dial import REFUSED
from backend.health import Probe
from backend.http1_protocol import Http1Protocol
from backend.request_head import RequestHead
from core.errors import GatewayError, Unavailable, UpstreamTimeout, UpstreamUnreachable


class Dialler:
    """Instead of the real one: connects in memory, or fails."""

    id = "r"

    def __init__(self, speaks: str | GatewayError) -> None:
        self.speaks = speaks
        self.transport = Transport()
        self.socket: Http1Protocol
        self.wire: ProtocolWire

    async def open(self, http1: Any, http2: Any) -> Any:
        if isinstance(self.speaks, GatewayError):
            raise self.speaks
        if self.speaks == "http1":
            self.socket = Http1Protocol(http1, RequestHead(b"gpu"))
            self.socket.connection_made(self.transport)  # type: ignore[arg-type]
            return self.socket
        self.wire = ProtocolWire()
        self.wire.protocol._owner = http2
        return self.wire.open().protocol

    def answer(self, status: int, body: bytes) -> None:
        if self.speaks == "http1":
            head = b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
            self.socket.data_received(head + body)
        else:
            head = [(b":status", b"%d" % status), *SSE[1:]]
            self.wire.server.respond(1, head, False)
            self.wire.server.send(1, body, True)
            self.wire.pump()

    @property
    def closed(self) -> bool:
        return self.transport.aborted if self.speaks == "http1" else self.wire.transport.closing


@pytest.fixture(params=["http1", "h2"])
def dialler(request: pytest.FixtureRequest) -> Dialler:
    return Dialler(request.param)


async def start(asking: Any) -> asyncio.Task[Any]:
    task = asyncio.ensure_future(asking)
    for _ in range(3):
        await asyncio.sleep(0)
    return task


def asker(dialler: Dialler) -> Asker:
    return Asker(dialler)  # type: ignore[arg-type]


@pytest.mark.parametrize(("status", "probe"), [(200, "good"), (204, "good"), (503, "bad")])
async def test_a_probe_is_its_status(dialler: Dialler, status: int, probe: str) -> None:
    task = await start(asker(dialler).probe("/health", 5))
    dialler.answer(status, b"" if status == 204 else b"page")
    assert (await task).value == probe
    assert dialler.closed


async def test_a_page_is_read_whole(dialler: Dialler) -> None:
    task = await start(asker(dialler).fetch("/metrics", 5, 1000))
    dialler.answer(200, b"metrics")
    assert await task == b"metrics"
    assert dialler.closed


async def test_a_long_page_is_cut(dialler: Dialler) -> None:
    task = await start(asker(dialler).fetch("/metrics", 5, 10))
    dialler.answer(200, b"x" * 1000)
    assert await task == b"x" * 10
    assert dialler.closed


async def test_a_bad_page_is_none(dialler: Dialler) -> None:
    task = await start(asker(dialler).fetch("/metrics", 5, 1000))
    dialler.answer(404, b"no")
    assert await task is None


async def test_silence(dialler: Dialler) -> None:
    assert await asker(dialler).probe("/health", 0.001) is Probe.SLOW
    assert dialler.closed
    assert await asker(dialler).fetch("/metrics", 0.001, 10) is None


async def test_a_connection_that_is_lost(dialler: Dialler) -> None:
    task = await start(asker(dialler).probe("/health", 5))
    if dialler.speaks == "http1":
        dialler.socket.connection_lost(None)
    else:
        dialler.wire.protocol.connection_lost(None)
    assert await task is Probe.BAD


@pytest.mark.parametrize(
    ("error", "probe"),
    [
        (UpstreamUnreachable("", code=REFUSED), Probe.REFUSED),
        (UpstreamUnreachable(""), Probe.BAD),
        (UpstreamTimeout("", phase="connect"), Probe.SLOW),
        (Unavailable("no descriptors"), Probe.SLOW),  # ours, so it proves nothing
    ],
)
async def test_no_connection(error: GatewayError, probe: Probe) -> None:
    assert await asker(Dialler(error)).probe("/health", 5) is probe
    assert await asker(Dialler(error)).fetch("/metrics", 5, 10) is None
