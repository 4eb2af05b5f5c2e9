"""HTTP/2 clients, gateway and replica on real sockets, on both engines."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import orjson
import pytest
from client import Client, ask, chat
from http2_client import CHAT, Http2Client
from http2_frames import data, ping, reset, settings, window_update
from running import Identity, InProcess, base_config

from core.http2 import frames
from core.http2.engine import ErrorCode
from core.http2.frames import frame
from loadtest.replica import FakeReplica

MOST_FRAMES, MOST_RESETS, MOST_STARTED = 1000, 500, 200


@pytest.fixture(params=["nghttp2", "h2"])
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
async def replica() -> AsyncIterator[FakeReplica]:
    async with FakeReplica() as replica:
        yield replica


@pytest.fixture
async def gateway(replica: FakeReplica, tmp_path: Path, engine: str) -> AsyncIterator[InProcess]:
    document = base_config([replica.url])
    document["listen"]["http2_engine"] = engine
    async with InProcess(document, tmp_path) as gateway:
        yield gateway


@pytest.fixture
async def client(gateway: InProcess) -> AsyncIterator[Http2Client]:
    client = await Http2Client.open(gateway.port)
    yield client
    client.close()


def events(body: bytes) -> list[object]:
    """The choices of each event: what else there is differs from request to request."""
    found = [line[6:] for line in body.split(b"\n\n") if line]
    return [orjson.loads(data)["choices"] if data != b"[DONE]" else "[DONE]" for data in found]


async def test_the_stream_is_the_same_as_over_http_1(
    gateway: InProcess, client: Http2Client
) -> None:
    document = chat("What is a headrace?", max_tokens=20)
    over_http1 = await ask(gateway.port, document)
    answer = await client.answer(client.ask(document))
    assert answer.complete
    assert answer.headers[b"content-type"].startswith(b"text/event-stream")
    assert events(answer.body) == events(over_http1.body)
    whole = await client.answer(client.ask(chat("What?", stream=False, max_tokens=3)))
    assert int(whole.headers[b"content-length"]) == len(whole.body)


async def test_alpn_chooses_and_http_1_stays(
    replica: FakeReplica, tmp_path: Path, engine: str
) -> None:
    identity = Identity(tmp_path)
    document = base_config([replica.url])
    document["listen"] |= {"tls": identity.tls, "http2_engine": engine}
    async with InProcess(document, tmp_path) as gateway:
        modern = await Http2Client.open(gateway.port, identity.client_context())
        assert modern.alpn == "h2"
        assert (await modern.answer(modern.ask(chat(max_tokens=3)))).complete
        modern.close()
        old = await Client.open(gateway.port, identity.client_context())
        assert (await old.ask(chat(max_tokens=3))).complete
        old.close()


async def test_http2_can_be_off(replica: FakeReplica, tmp_path: Path) -> None:
    identity = Identity(tmp_path)
    document = base_config([replica.url])
    document["listen"] |= {"tls": identity.tls, "http2_engine": "off"}
    context = identity.client_context()
    context.set_alpn_protocols(["h2", "http/1.1"])
    async with InProcess(document, tmp_path) as gateway:
        client = await Client.open(gateway.port, context)
        ssl_object = client.writer.get_extra_info("ssl_object")
        assert ssl_object.selected_alpn_protocol() == "http/1.1"
        assert (await client.ask(chat(max_tokens=3))).complete
        client.close()


async def test_a_hundred_streams_share_a_connection(client: Http2Client) -> None:
    streams = [client.ask(chat(f"number {number}", max_tokens=10)) for number in range(100)]
    for stream in streams:
        answer = await client.answer(stream)
        assert answer.status == 200
        assert answer.body.endswith(b"data: [DONE]\n\n")


async def test_a_reset_stops_the_replica(
    gateway: InProcess, client: Http2Client, replica: FakeReplica
) -> None:
    replica.behaviour = "token_ms=20"
    stream = client.ask(chat(max_tokens=1000))
    await client.until(lambda: stream in client.answers)
    client.send(reset(stream))
    record = replica.requests[0]
    async with asyncio.timeout(20):
        while record.outcome != "aborted":
            await asyncio.sleep(0.01)
    replica.behaviour = ""
    assert (await client.answer(client.ask(chat(max_tokens=3)))).complete


async def test_a_replica_that_dies_midway_is_told_by_an_event_and_a_reset(
    client: Http2Client, replica: FakeReplica
) -> None:
    replica.behaviour = "kill_mid"
    answer = await client.answer(client.ask(chat(max_tokens=50)))
    assert answer.status == 200
    assert b'data: {"error":' in answer.body
    assert b"[DONE]" not in answer.body
    assert answer.reset == ErrorCode.INTERNAL_ERROR
    replica.behaviour = ""
    assert (await client.answer(client.ask(chat(max_tokens=3)))).complete


async def test_a_stream_that_is_not_read_holds_up_no_other(
    gateway: InProcess, replica: FakeReplica
) -> None:
    client = await Http2Client.open(gateway.port, own_settings=settings(_4=300))
    stuck = client.ask(chat("never read", max_tokens=2000))
    await client.until(lambda: client.answers.get(stuck) and client.answers[stuck].body)
    for number in range(5):
        stream = client.ask(chat(f"number {number}", max_tokens=3))
        client.send(window_update(stream, 100_000))
        assert (await client.answer(stream)).complete
    assert len(client.answers[stuck].body) == 300
    client.send(window_update(stuck, 2**30))
    assert (await client.answer(stuck)).complete
    client.close()


async def test_an_upload_beside_streams(client: Http2Client) -> None:
    """4 MB in one stream, sent as fast as its windows open, and small requests between."""
    upload, part, sent = client.next_stream(), b"x" * 16_384, 0

    def room() -> bool:
        updates = client.of(frames.WINDOW_UPDATE)
        granted = sum(int.from_bytes(u.payload, "big") for u in updates if u.stream_id == upload)
        return 262_144 + granted - sent >= len(part)

    client.send(client.head.head(upload, CHAT))
    for number in range(250):
        await client.until(room)
        client.send(data(upload, part))
        sent += len(part)
        if number % 50 == 10:
            assert (await client.answer(client.ask(chat(max_tokens=3)))).complete
    client.send(data(upload, b"", end=True))
    assert (await client.answer(upload)).status == 400


async def test_a_drained_connection_finishes_its_streams(
    replica: FakeReplica, tmp_path: Path, engine: str
) -> None:
    document = base_config([replica.url])
    document["listen"]["http2_engine"] = engine
    async with InProcess(document, tmp_path) as gateway:
        client = await Http2Client.open(gateway.port)
        replica.behaviour = "token_ms=20"
        stream = client.ask(chat(max_tokens=20))
        await client.until(lambda: stream in client.answers)
        gateway.stop.set()
        answer = await client.answer(stream)
    assert answer.body.endswith(b"data: [DONE]\n\n")
    await client.until(lambda: False)
    assert client.over
    assert [one.code for one in client.of(frames.GOAWAY)] == [0, 0]
    client.close()


# --- abuse: each pattern on one connection, until it is cut

Attack = Callable[[Http2Client], Iterator[bytes]]


def begin(client: Http2Client, *, end: bool = True) -> tuple[int, bytes]:
    stream = client.next_stream()
    body = orjson.dumps(chat(max_tokens=100))
    head = client.head.head(stream, CHAT)
    return stream, head + data(stream, body, end=end)


def rapid_reset(client: Http2Client) -> Iterator[bytes]:
    while True:
        stream, request = begin(client)
        yield request + reset(stream)


def made_reset_by_window(client: Http2Client) -> Iterator[bytes]:
    while True:
        stream, request = begin(client)
        yield request + window_update(stream, 2**31 - 1)


def made_reset_by_data(client: Http2Client) -> Iterator[bytes]:
    while True:
        stream, request = begin(client)
        yield request + data(stream, b"more")


def made_reset_by_length(client: Http2Client) -> Iterator[bytes]:
    while True:
        stream = client.next_stream()
        head = client.head.head(stream, [*CHAT, (b"content-length", b"5")])
        yield head + data(stream, b"{}", end=True)


def settings_flood(client: Http2Client) -> Iterator[bytes]:
    while True:
        yield settings(_4=65_535)


def ping_flood(client: Http2Client) -> Iterator[bytes]:
    while True:
        yield ping()


def priority_flood(client: Http2Client) -> Iterator[bytes]:
    while True:
        yield frame(frames.PRIORITY, 0, client.next_stream(), b"\0\0\0\0\x10")


def window_flood(client: Http2Client) -> Iterator[bytes]:
    while True:
        yield window_update(0, 1)


def empty_data(client: Http2Client) -> Iterator[bytes]:
    stream = client.next_stream()
    yield client.head.head(stream, CHAT)
    while True:
        yield data(stream, b"")


def continuation_flood(client: Http2Client) -> Iterator[bytes]:
    stream = client.next_stream()
    yield client.head.head(stream, CHAT, more=True)
    while True:
        yield frame(frames.CONTINUATION, 0, stream, b"")


def hpack_bomb(client: Http2Client) -> Iterator[bytes]:
    """A large field once, then by its index again and again: one byte is four kilobytes."""
    while True:
        stream = client.next_stream()
        newest = b"\xbe" * 10_000  # by the index of the newest entry (RFC 7541 section 6.1)
        block = client.head.block([*CHAT, (b"bomb", b"x" * 4000)]) + newest
        yield frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream, block)


def zero_windows(client: Http2Client) -> Iterator[bytes]:
    yield settings(_4=0)
    while True:
        yield begin(client)[1]


ATTACKS: dict[str, Attack] = {
    "rapid reset": rapid_reset,
    "made to reset by a window": made_reset_by_window,
    "made to reset by data after the end": made_reset_by_data,
    "made to reset by a wrong length": made_reset_by_length,
    "SETTINGS": settings_flood,
    "PING": ping_flood,
    "PRIORITY": priority_flood,
    "WINDOW_UPDATE": window_flood,
    "empty DATA": empty_data,
    "CONTINUATION": continuation_flood,
    "HPACK bomb": hpack_bomb,
    "zero windows": zero_windows,
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
async def test_an_abusive_client_is_cut(
    gateway: InProcess, client: Http2Client, replica: FakeReplica, attack: Attack
) -> None:
    replica.behaviour = "token_ms=20"
    sent = 0
    for piece in attack(client):
        client.send(piece)
        await client.flush()
        sent += 1
        if sent % 10 == 0:
            await asyncio.sleep(0.001)  # so that some of what is asked for is begun
            if client.goaway or gateway.metric("headrace_downstream_connections") == 0:
                break
        if client.over or sent > MOST_FRAMES:
            break
        with contextlib.suppress(TimeoutError):
            await client.read(0.0005)
    await client.until(lambda: False)
    assert client.over
    assert sent <= MOST_FRAMES
    assert len(client.of(frames.RST_STREAM)) <= MOST_RESETS
    assert len(replica.requests) <= MOST_STARTED
    replica.behaviour = ""
    other = await Http2Client.open(gateway.port)
    assert (await other.answer(other.ask(chat(max_tokens=3)))).complete
    other.close()
