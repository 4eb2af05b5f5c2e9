"""The pool against HTTP/2 servers on real sockets, each doing what a test scripts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import listening
import pytest
from http2_replica import Http2Replica, ServedStream
from upstream import Answer, Client, on_both_loops, until

from backend.config import (
    HealthConfig,
    PoolConfig,
    ReplicaTlsConfig,
    TimeoutsConfig,
    UpstreamConfig,
)
from backend.dialer import OPTIONS
from backend.http2_streams import MAX_RESETS
from core.errors import UpstreamError, UpstreamReset, UpstreamTimeout, UpstreamUnreachable
from core.http2.engine import ErrorCode
from core.section import FilePath
from proxy.serve.throwaway import make_certificate


async def hello(stream: ServedStream) -> None:
    await stream.whole_body()
    stream.respond()
    stream.write(b"hi", end=True)


async def endless(stream: ServedStream) -> None:
    stream.respond()
    while not stream.over.is_set():
        stream.write(b"x")
        await asyncio.sleep(0.005)


async def begin_and_wait(stream: ServedStream) -> None:
    """Headers and a byte, then nothing until the client resets."""
    stream.respond()
    stream.write(b"x")
    await stream.over.wait()


async def by_body(stream: ServedStream) -> None:
    """What the body asks for."""
    await {b"hello": hello, b"endless": endless, b"wait": begin_and_wait, b"reset": reset_mid}[
        await stream.whole_body()
    ](stream)


async def reset_mid(stream: ServedStream) -> None:
    stream.respond()
    stream.write(b"x")
    await asyncio.sleep(0.02)
    stream.reset(ErrorCode.INTERNAL_ERROR)


@asynccontextmanager
async def using(server: Http2Replica, **options: Any) -> AsyncIterator[Client]:
    options.setdefault("protocol", "h2")
    client = Client(server.url, **options)
    try:
        yield client
    finally:
        await client.pool.close()
        await until(lambda: client.pool.open_connections() == 0)


async def tick(client: Client, seconds: int) -> None:
    """Let time pass for the pool, and bytes in between."""
    for _ in range(seconds):
        client.now += 1.0
        client.pool._tick(client.now)
        await asyncio.sleep(0.005)


async def end(answer: Answer) -> bytes:
    async with asyncio.timeout(20):
        await answer.done
    return answer.body


async def failure(answer: Answer, seconds: float = 5) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        async with asyncio.timeout(seconds):
            await answer.done
    return caught.value


@on_both_loops
async def test_exchanges_share_a_connection() -> None:
    async with Http2Replica(hello) as server, using(server) as client:
        exchanges = [await client.begin(body=b"{}") for _ in range(50)]
        assert [await end(answer) for _, answer in exchanges] == [b"hi"] * 50
        assert (len(server.connections), client.connects("ok")) == (1, 1)
        hold, _ = await client.ask()
        assert hold.reused


@on_both_loops
async def test_the_other_engine() -> None:
    async with (
        Http2Replica(hello, engine="h2") as server,
        using(server, http2_engine="h2") as client,
    ):
        exchanges = [await client.begin(body=b"x" * 100_000) for _ in range(10)]
        assert [await end(answer) for _, answer in exchanges] == [b"hi"] * 10


@on_both_loops
async def test_a_stream_that_breaks_harms_no_other() -> None:
    async with Http2Replica(by_body) as server, using(server) as client:
        flowing, answer = await client.begin(body=b"endless")
        error = await failure((await client.begin(body=b"reset"))[1])
        assert isinstance(error, UpstreamReset)
        assert (error.reused, error.answered) == (False, True)
        size = answer.size
        await until(lambda: answer.size > size + 5)
        flowing.abort()
        assert len(server.connections) == 1


@on_both_loops
async def test_goaway_in_the_middle() -> None:
    """What runs ends as usual; what comes goes elsewhere; the connection is closed at its end."""
    async with Http2Replica(by_body) as server, using(server) as client:
        flowing, answer = await client.begin(body=b"endless")
        await answer.started.wait()
        server.connections[0].engine.goaway()
        server.connections[0].flush()
        await until(lambda: client.pool._targets["r"]._http2.with_room == 0)
        _, late = await client.begin(body=b"hello")
        assert await end(late) == b"hi"
        assert len(server.connections) == 2
        size = answer.size
        await until(lambda: answer.size > size + 5)
        flowing.abort()
        await until(lambda: not server.connections[0].is_open)
        assert server.connections[1].is_open


@on_both_loops
async def test_a_goaway_that_crosses_requests_proves_that_nothing_was_done() -> None:
    async with Http2Replica(hello) as server, using(server) as client:
        await client.ask()
        connection = server.connections[0]
        connection.transport.pause_reading()
        connection.engine.goaway()
        connection.flush()
        _, answer = await client.begin(body=b"{}")
        error = await failure(answer)
        assert isinstance(error, UpstreamReset)
        assert (error.reused, error.answered, error.retryable) == (True, False, True)
        _, again = await client.ask(fresh=True)
        assert again.body == b"hi"


@on_both_loops
async def test_the_limit_of_streams_is_kept_and_more_connections_are_opened() -> None:
    async with Http2Replica(by_body, max_streams=2) as server, using(server) as client:
        exchanges = await asyncio.gather(*(client.begin(body=b"endless") for _ in range(9)))
        await asyncio.gather(*(answer.started.wait() for _, answer in exchanges))
        assert [len(c.open_streams()) for c in server.connections] == [2, 2, 2, 2, 1]
        assert not [stream for stream in server.streams if stream.reset_code is not None]
        for hold, _ in exchanges:
            hold.abort()
        await tick(client, 5)
        await until(lambda: server.open == 0)  # none is kept warm here


@on_both_loops
async def test_requests_do_not_pile_up_on_a_connection_that_never_becomes_usable() -> None:
    timeouts = TimeoutsConfig(connect_s=0.1)
    async with Http2Replica(hello, mute=True) as server, using(server, timeouts=timeouts) as client:
        asked = [client.pool.connect("r") for _ in range(20)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(result) for result in results} == {UpstreamTimeout}
        assert client.connects("timeout") == 1
        await until(lambda: server.open == 0)
        server.mute = False
        _, answer = await client.ask()
        assert answer.body == b"hi"


@on_both_loops
async def test_a_dead_connection_is_found_by_its_silence() -> None:
    async with Http2Replica(by_body) as server, using(server) as client:
        _, answer = await client.begin(body=b"wait")
        await answer.started.wait()
        server.connections[0].transport.pause_reading()
        await tick(client, 6)  # noticed at the first, asked at the sixth
        await tick(client, 1)  # in doubt it gets nothing new
        assert await end((await client.begin(body=b"hello"))[1]) == b"hi"
        assert len(server.connections) == 2
        assert not answer.done.done()
        await tick(client, 4)
        error = await failure(answer)
        assert isinstance(error, UpstreamReset)
        assert error.answered
        await until(lambda: client.pool.open_connections() == 0)  # the other one was idle


@on_both_loops
async def test_a_long_silence_is_no_fault_while_pings_are_answered() -> None:
    async with Http2Replica(by_body) as server, using(server) as client:
        hold, answer = await client.begin(body=b"wait")
        await answer.started.wait()
        await tick(client, 30)
        assert not answer.done.done()
        activity = client.pool.activity("r")
        hold.abort()
        assert activity == 2, "a PING is no activity of a response"
        assert len(server.connections) == 1


@on_both_loops
async def test_a_refused_stream() -> None:
    async def refuse(stream: ServedStream) -> None:
        stream.reset(ErrorCode.REFUSED_STREAM)

    async with Http2Replica(hello) as server, using(server) as client:
        await client.ask()
        server.script = refuse
        error = await failure((await client.begin())[1])
        assert isinstance(error, UpstreamReset)
        assert (error.reused, error.answered) == (True, False)


@on_both_loops
async def test_a_thousand_small_frames() -> None:
    async def tokens(stream: ServedStream) -> None:
        stream.respond()
        stream.write_frames([b"data: %03d\n\n" % number for number in range(1000)])
        stream.write(b"", end=True)

    async with Http2Replica(tokens) as server, using(server) as client:
        _, answer = await client.ask()
        assert answer.size == 11_000


@on_both_loops
async def test_a_window_of_zero_holds_up_its_own_request_alone() -> None:
    async with Http2Replica(by_body, stream_window=0) as server, using(server) as client:
        stuck, answer = await client.begin(body=b"hello")
        pages = [await client.pool.connect("r") for _ in range(3)]
        server.script = begin_and_wait
        others = []
        for hold in pages:
            others.append(Answer())
            hold.send(b"GET", b"/health", [], b"", others[-1])
        await asyncio.gather(*(other.started.wait() for other in others))
        assert not answer.done.done()
        stuck.abort()
        await until(lambda: server.streams[0].reset_code == ErrorCode.CANCEL)
        for hold in pages:
            hold.abort()


@on_both_loops
async def test_a_body_larger_than_the_window_is_sent_as_it_opens() -> None:
    async with Http2Replica(hello, stream_window=5000) as server, using(server) as client:
        body = os.urandom(400_000)
        exchanges = [await client.begin(body=body) for _ in range(3)]
        assert [await end(answer) for _, answer in exchanges] == [b"hi"] * 3
        assert [stream.body == body for stream in server.streams] == [True] * 3


@on_both_loops
async def test_an_answer_while_a_large_request_is_unsent() -> None:
    async def refuse_early(stream: ServedStream) -> None:
        stream.respond(413, end=True)

    async with Http2Replica(refuse_early, stream_window=5000) as server, using(server) as client:
        hold, answer = await client.begin(body=b"x" * 400_000)
        await end(answer)
        assert answer.status == 413
        hold, _ = await client.ask()
        assert hold.reused


@on_both_loops
async def test_paused_reading_bounds_what_one_stream_sends_and_no_other() -> None:
    async def flood(stream: ServedStream) -> None:
        await stream.whole_body()
        stream.respond()
        stream.write(b"x" * 8_000_000, end=True)

    async with Http2Replica(flood) as server, using(server) as client:
        slow, held_up = await client.begin()
        slow.pause_reading()
        _, answer = await client.begin()
        await end(answer)
        assert answer.size == 8_000_000
        assert held_up.size == OPTIONS.stream_window
        assert server.streams[0].waiting == 8_000_000 - OPTIONS.stream_window
        slow.resume_reading()
        await end(held_up)
        assert held_up.size == 8_000_000


@on_both_loops
async def test_abort_is_seen_as_a_reset_at_once() -> None:
    async with Http2Replica(begin_and_wait) as server, using(server) as client:
        hold, answer = await client.begin()
        other, stays = await client.begin()
        await asyncio.gather(answer.started.wait(), stays.started.wait())
        aborted_at = asyncio.get_running_loop().time()
        hold.abort()
        await until(lambda: server.streams[0].reset_code is not None)
        reset_at = server.streams[0].reset_at
        assert server.streams[0].reset_code == ErrorCode.CANCEL
        assert reset_at is not None
        assert reset_at - aborted_at < 0.1
        assert not answer.done.done()
        assert server.streams[1].reset_code is None
        other.abort()


@on_both_loops
async def test_a_thousand_aborted_exchanges_leave_no_stream() -> None:
    async with Http2Replica(begin_and_wait) as server, using(server) as client:
        before = len(os.listdir("/proc/self/fd"))

        async def cycle(number: int) -> None:
            hold, answer = await client.begin()
            if number % 2:
                await answer.started.wait()
            hold.abort()

        for start in range(0, 1000, 50):
            await asyncio.gather(*(cycle(start + n) for n in range(50)))
        await until(lambda: not server.open_streams())
        assert client.pool._targets["r"].counts().streams == 0
        # A new connection now and then, because servers mistrust clients that reset a lot.
        assert len(server.connections) == 1000 // MAX_RESETS + (1000 % MAX_RESETS > 0)
        await until(lambda: client.pool.open_connections() <= 1)
        await until(lambda: len(os.listdir("/proc/self/fd")) <= before + 2)


@on_both_loops
async def test_cancelled_at_any_tick() -> None:
    async with Http2Replica(hello) as server, using(server) as client:
        for ticks in range(12):
            task = asyncio.ensure_future(client.pool.connect("r", fresh=True))
            for _ in range(ticks):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result().abort()
        assert client.pool._targets["r"].counts().streams == 0
        await client.ask()
        assert server.open_streams() == []


@on_both_loops
async def test_a_restarted_replica() -> None:
    async with Http2Replica(hello) as server, using(server) as client:
        await client.ask()
        server.connections[0].abort()
        await until(lambda: client.pool.open_connections() == 0)
        hold, _ = await client.ask()
        assert not hold.reused


@on_both_loops
async def test_a_lost_connection_fails_what_was_on_it() -> None:
    async with Http2Replica(begin_and_wait) as server, using(server) as client:
        _, one = await client.begin()
        await one.started.wait()
        server.script = lambda _: asyncio.sleep(0)  # type: ignore[assignment]
        _, two = await client.begin()
        await until(lambda: len(server.streams) == 2)
        server.connections[0].abort()
        errors = [await failure(answer) for answer in (one, two)]
        assert [isinstance(error, UpstreamReset) and error.answered for error in errors] == [1, 0]


@on_both_loops
async def test_silent_streams_of_a_refusing_replica_fail_and_flowing_ones_do_not() -> None:
    health = HealthConfig(refused_grace_s=0.1)
    async with Http2Replica(by_body) as server, using(server, health=health) as client:
        _, silent = await client.begin(body=b"wait")
        flowing, answer = await client.begin(body=b"endless")
        await asyncio.gather(silent.started.wait(), answer.started.wait())
        client.pool.refused("r")
        error = await failure(silent, 2)
        assert isinstance(error, UpstreamReset)
        assert error.answered
        assert not answer.done.done()
        flowing.abort()


@on_both_loops
async def test_close_lets_a_response_end() -> None:
    go_on = asyncio.Event()

    async def wait(stream: ServedStream) -> None:
        stream.respond()
        await go_on.wait()
        stream.write(b"hi", end=True)

    async with Http2Replica(wait) as server, using(server) as client:
        _, answer = await client.begin()
        await client.pool.close()
        with pytest.raises(UpstreamUnreachable):
            await client.pool.connect("r")
        go_on.set()
        assert await end(answer) == b"hi"
        await until(lambda: client.pool.open_connections() == 0 and server.open == 0)
        assert server.connections[0].goaways == [(0, ErrorCode.NO_ERROR)]


@on_both_loops
async def test_warm_connections_are_usable_ones() -> None:
    pool = PoolConfig(warm=1)
    async with Http2Replica(hello) as server, using(server, pool=pool) as client:
        await client.pool.start()
        await until(lambda: client.pool._targets["r"].counts().idle == 1)
        hold, _ = await client.ask()
        assert not hold.reused
        await tick(client, 20)
        assert len(server.connections) == 1, "it is kept, however long it is idle"


class TestTls:
    """What ALPN agrees on. The certificate is for localhost, from a throw-away authority."""

    @pytest.fixture
    def tls(self, tmp_path: Path) -> ReplicaTlsConfig:
        files = make_certificate(tmp_path)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(files.certificate, files.key)
        return ReplicaTlsConfig(ca=FilePath(files.authority), server_name="localhost")

    @pytest.mark.parametrize("protocol", ["h2", "auto"])
    @on_both_loops
    async def test_verified_and_resumed(self, tls: ReplicaTlsConfig, protocol: str) -> None:
        self.context.set_alpn_protocols(["h2", "http/1.1"])
        async with (
            Http2Replica(hello, tls=self.context) as server,
            using(server, tls=tls, protocol=protocol) as client,
        ):
            for _ in range(4):
                _, answer = await client.ask(fresh=True)
                assert answer.body == b"hi"
            assert server.resumed == [False, True, True, True]
            assert self.context.session_stats()["hits"] == 3

    @on_both_loops
    async def test_a_server_that_does_not_offer_it(self, tls: ReplicaTlsConfig) -> None:
        async def http1(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    await reader.readuntil(b"\r\n\r\n")
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
            writer.close()

        self.context.set_alpn_protocols(["http/1.1"])
        listener = await asyncio.start_server(http1, "127.0.0.1", 0, ssl=self.context)
        url = f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        auto = Client(url, tls, "auto")
        asked = await asyncio.gather(*(auto.ask() for _ in range(3)))
        assert [answer.body for _, answer in asked] == [b"hi"] * 3
        assert (await auto.ask())[0].reused
        strict = Client(url, tls, "h2")
        with pytest.raises(UpstreamUnreachable) as caught:
            await strict.ask()
        assert caught.value.reason in ("upstream_no_http2", "upstream_tls_failed")
        for client in (auto, strict):
            await client.pool.close()
            await until(lambda c=client: c.pool.open_connections() == 0)  # type: ignore[misc]
        await listening.close(listener)

    @on_both_loops
    async def test_not_verified(self, tls: ReplicaTlsConfig) -> None:
        self.context.set_alpn_protocols(["h2"])
        async with Http2Replica(hello, tls=self.context) as server:
            unknown = ReplicaTlsConfig(server_name="localhost")
            for wrong in (ReplicaTlsConfig(ca=tls.ca, server_name="other.test"), unknown):
                client = Client(server.url, wrong, "auto")
                with pytest.raises(UpstreamUnreachable) as caught:
                    await client.ask()
                assert caught.value.reason == "upstream_tls_failed"
                assert client.pool.open_connections() == 0


def test_the_defaults_find_a_dead_connection_before_the_stream_times_out() -> None:
    config = UpstreamConfig()
    assert 2 * config.pool.ping_s + 2 < config.timeouts.idle_s
