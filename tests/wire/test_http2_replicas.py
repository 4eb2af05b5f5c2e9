"""The whole gateway before replicas that speak HTTP/2: nothing is different for its clients."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from client import Client, ask, chat, events
from http2_replica import Http2Replica, ServedStream, speaking_for
from running import InProcess, base_config

from core.http2.engine import ErrorCode
from loadtest.replica import FakeReplica
from proxy.serve.throwaway import make_certificate


class Fleet:
    """Two fake replicas, an HTTP/2 server that speaks for each, and a gateway before them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fakes: list[FakeReplica] = []
        self.servers: list[Http2Replica] = []
        self.gateway: InProcess
        self._stack = AsyncExitStack()

    async def start(
        self,
        protocol: str = "h2",
        *,
        tls: bool = False,
        pool: dict[str, Any] | None = None,
        options: dict[str, Any] | None = None,
        **sections: Any,
    ) -> Fleet:
        context, trust = None, None
        if tls:
            files = make_certificate(self.folder)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(files.certificate, files.key)
            context.set_alpn_protocols(["h2", "http/1.1"])
            trust = {"ca": str(files.authority), "server_name": "localhost"}
        for _ in range(2):
            fake = await self._stack.enter_async_context(FakeReplica(token_ms=1))
            server = Http2Replica(speaking_for(fake), tls=context, **(options or {}))
            self.fakes.append(fake)
            self.servers.append(await self._stack.enter_async_context(server))
        document = base_config([server.url for server in self.servers], **sections)
        document["upstream"] = {"pool": pool or {}, **document.get("upstream", {})}
        for replica in document["replicas"]:
            replica["protocol"] = protocol
            replica["kv_events"] = "off"  # nobody asks anything more
            if trust is not None:
                replica["tls"] = trust
        self.gateway = await self._stack.enter_async_context(InProcess(document, self.folder))
        return self

    async def close(self) -> None:
        await self._stack.aclose()

    def behave(self, behaviour: str) -> None:
        for fake in self.fakes:
            fake.behaviour = behaviour

    @property
    def asked(self) -> int:
        return sum(len(fake.requests) for fake in self.fakes)

    async def quiet(self) -> None:
        """Everything that was borrowed has been given back."""
        gauges = [
            (name, replica_id, *state)
            for replica_id in ("r0", "r1")
            for name, *state in (
                ("headrace_replica_inflight",),
                ("headrace_replica_pending_prefill_tokens",),
                ("headrace_replica_live_kv_tokens",),
                ("headrace_upstream_streams",),
                ("headrace_upstream_connections", "busy"),
            )
        ]

        def left() -> list[Any]:
            found = [gauge for gauge in gauges if self.gateway.metric(*gauge)]
            found += [s for server in self.servers for s in server.open_streams()]
            if self.gateway.metric("headrace_exchanges_in_flight"):
                found.append("exchanges in flight")
            return found

        for _ in range(300):  # these gauges are published once a second
            if not left():
                break
            await asyncio.sleep(0.01)
        assert left() == []
        assert self.gateway.metric("headrace_ledger_underflow_total") == 0


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    fleet = Fleet(tmp_path)
    yield fleet
    await fleet.close()


@pytest.mark.parametrize("tls", [False, True], ids=["clear", "tls"])
async def test_the_text_is_the_same_as_over_http1(fleet: Fleet, tls: bool) -> None:
    await fleet.start("auto" if tls else "h2", tls=tls)
    for path, field in (("/v1/chat/completions", "messages"), ("/v1/completions", "prompt")):
        for stream in (True, False):
            document = chat("What is a headrace?", stream=stream, max_tokens=20, prompt="It is")
            del document["prompt" if field == "messages" else "messages"]
            direct = await ask(fleet.fakes[0].port, document, path=path)
            through = await ask(fleet.gateway.port, document, path=path)
            assert through.complete
            assert through.text == direct.text != ""
            assert len(events(through.body)) == len(events(direct.body))
    posts = [stream for server in fleet.servers for stream in server.requests()]
    assert len(posts) == 4
    assert {stream.fields[":scheme"] for stream in posts} == {"https" if tls else "http"}
    assert not {name for stream in posts for name, _ in stream.headers} & {"host", "connection"}


async def test_probes_and_scrapes_speak_it_too(fleet: Fleet) -> None:
    await fleet.start(upstream={"health": {"interval_s": 0.05}, "metrics": {"interval_s": 0.5}})
    asked = [stream.fields[":path"] for server in fleet.servers for stream in server.streams]
    for _ in range(100):
        if asked.count("/health") >= 4 and "/metrics" in asked:
            break
        await asyncio.sleep(0.02)
        asked = [stream.fields[":path"] for server in fleet.servers for stream in server.streams]
    assert set(asked) == {"/health", "/metrics"}
    fleet.servers[0].stop_listening()
    for _ in range(200):
        if fleet.gateway.metric("headrace_replica_healthy", "r0") == 0:
            break
        await asyncio.sleep(0.01)
    assert fleet.gateway.metric("headrace_replica_healthy", "r0") == 0
    assert fleet.gateway.metric("headrace_replica_healthy", "r1") == 1


async def test_many_at_once_share_a_connection(fleet: Fleet) -> None:
    await fleet.start(upstream={"active_health": False, "metrics": "off"})
    asked = [ask(fleet.gateway.port, chat(f"question {n}", max_tokens=20)) for n in range(60)]
    answers = await asyncio.gather(*asked)
    assert all(answer.complete and answer.text for answer in answers)
    assert sum(len(server.connections) for server in fleet.servers) == 2
    await fleet.quiet()


# A fault of one stream over HTTP/1.1 is a reset stream here: tried elsewhere, or cut.
@pytest.mark.parametrize("behaviour", ["reset_before_head", "status=503", "error_first=503"])
async def test_faults_before_the_first_event_are_tried_elsewhere(
    fleet: Fleet, behaviour: str
) -> None:
    await fleet.start()
    fleet.fakes[0].behaviour = behaviour
    for number in range(4):  # whichever replica comes first, the other one answers
        answer = await ask(fleet.gateway.port, chat(f"number {number}"))
        assert (answer.status, answer.complete) == (200, True)
        assert answer.body.endswith(b"data: [DONE]\n\n")
    fleet.behave(behaviour)
    answer = await ask(fleet.gateway.port, chat())
    assert answer.status in (502, 503)
    await fleet.quiet()


async def test_a_stream_that_breaks_is_cut_and_its_neighbours_flow(fleet: Fleet) -> None:
    await fleet.start()
    fleet.behave("token_ms=5")
    neighbours = [
        asyncio.ensure_future(ask(fleet.gateway.port, chat(f"neighbour {n}", max_tokens=60)))
        for n in range(10)
    ]
    async with asyncio.timeout(20):
        while fleet.asked < len(neighbours):
            await asyncio.sleep(0.01)
    fleet.behave("kill_mid")
    for _ in range(3):
        answer = await ask(fleet.gateway.port, chat(max_tokens=10))
        assert answer.status == 200
        assert not answer.complete
        assert b'"error"' in answer.body.rsplit(b"data: ", 1)[1]
    for neighbour in neighbours:
        answer = await neighbour
        assert answer.complete
        assert answer.body.endswith(b"data: [DONE]\n\n")
    await fleet.quiet()


async def test_replicas_that_leave_their_connections_lose_no_request(fleet: Fleet) -> None:
    """GOAWAY after every few requests, as servers do that bound the requests of a connection."""
    await fleet.start(upstream={"active_health": False, "metrics": "off"})

    def going_away(script: Callable[[ServedStream], Any]) -> Callable[[ServedStream], Any]:
        async def play(stream: ServedStream) -> None:
            if len(stream.connection.streams) == 5:
                stream.connection.engine.goaway()
                stream.connection.flush()
            await script(stream)

        return play

    for server in fleet.servers:
        server.script = going_away(server.script)
    for batch in range(25):
        asked = [ask(fleet.gateway.port, chat(f"{batch} {n}", max_tokens=5)) for n in range(4)]
        for answer in await asyncio.gather(*asked):
            assert (answer.status, answer.complete) == (200, True)
    assert sum(len(server.connections) for server in fleet.servers) > 10
    await fleet.quiet()


async def test_a_refused_stream_is_sent_again(fleet: Fleet) -> None:
    await fleet.start(upstream={"active_health": False, "metrics": "off"})
    seen = 0

    def refusing(script: Callable[[ServedStream], Any]) -> Callable[[ServedStream], Any]:
        async def play(stream: ServedStream) -> None:
            nonlocal seen
            seen += 1
            if seen % 2:
                stream.reset(ErrorCode.REFUSED_STREAM)
            else:
                await script(stream)

        return play

    for server in fleet.servers:
        server.script = refusing(server.script)
    for number in range(5):
        answer = await ask(fleet.gateway.port, chat(f"number {number}"))
        assert (answer.status, answer.complete) == (200, True)
    assert seen == 10


async def test_a_client_that_leaves_resets_its_stream_at_once_in_every_phase(
    fleet: Fleet,
) -> None:
    await fleet.start(upstream={"active_health": False, "metrics": "off"})
    loop = asyncio.get_running_loop()
    for behaviour in ("slow_head=30", "stall_first", "stall_mid=3"):
        for stream in (True, False):
            for leave in (Client.close, Client.reset):
                fleet.behave(behaviour)
                before = fleet.asked
                client = await Client.open(fleet.gateway.port)
                client.send(chat(stream=stream))
                while fleet.asked == before:
                    await asyncio.sleep(0.005)
                await asyncio.sleep(0.02)
                left_at = loop.time()
                leave(client)
                served = [s for server in fleet.servers for s in server.open_streams()]
                assert len(served) == 1
                async with asyncio.timeout(2):
                    await served[0].over.wait()
                assert served[0].reset_code == ErrorCode.CANCEL, behaviour
                assert served[0].reset_at is not None
                assert served[0].reset_at - left_at < 0.1, behaviour
    assert [server.open for server in fleet.servers] == [1, 1]
    await fleet.quiet()


async def abort_at_random(gateway: InProcess, number: int) -> None:
    """Leave after some bytes of the answer, or some time without any."""
    client = await Client.open(gateway.port)
    client.send(chat(f"prompt {number}", stream=number % 3 != 0, max_tokens=30))
    await asyncio.sleep((number % 7) * 0.002)
    for _ in range(number % 5):
        with contextlib.suppress(TimeoutError):  # the answer may be over already
            await asyncio.wait_for(client.reader.read(200 + number), 0.03)
    if number % 2:
        client.reset()
    else:
        client.close()


async def test_a_thousand_aborted_exchanges_leave_nothing_behind(fleet: Fleet) -> None:
    await fleet.start()
    for batch in range(20):
        await asyncio.gather(
            *[abort_at_random(fleet.gateway, batch * 50 + number) for number in range(50)]
        )
    await fleet.quiet()
    gone = fleet.gateway.metric("headrace_exchanges_total", "/v1/chat/completions", "499")
    assert gone > 300


async def test_a_slow_client_is_waited_for_and_holds_up_nobody(fleet: Fleet) -> None:
    await fleet.start(upstream={"active_health": False, "metrics": "off"})
    fleet.behave("flood=24")
    slow = await Client.open(fleet.gateway.port)
    slow.send(chat())
    await slow.head()
    (held,) = [s for server in fleet.servers for s in server.open_streams()]
    async with asyncio.timeout(30):
        while held.waiting < 8 * 1024 * 1024:  # what the replica wants to send and may not
            await asyncio.sleep(0.01)
    fleet.behave("")
    for number in range(10):  # on both replicas
        answer = await ask(fleet.gateway.port, chat(f"number {number}"))
        assert (answer.status, answer.complete) == (200, True)
    assert sum(len(server.connections) for server in fleet.servers) == 2
    received = 0
    while chunk := await slow.chunk():
        received += len(chunk)
    assert received > 20 * 1024 * 1024
    slow.close()
    await fleet.quiet()


@pytest.mark.parametrize("engine", ["nghttp2", "h2"])
async def test_a_large_prompt_and_small_windows(fleet: Fleet, engine: str) -> None:
    await fleet.start(upstream={"http2_engine": engine}, options={"stream_window": 2000})
    text = "A large prompt is sent as the window opens. " * 2000
    large = asyncio.ensure_future(ask(fleet.gateway.port, chat(text, max_tokens=5)))
    for number in range(5):
        answer = await ask(fleet.gateway.port, chat(f"number {number}", max_tokens=5))
        assert answer.complete
    answer = await large
    assert (answer.status, answer.complete) == (200, True)
