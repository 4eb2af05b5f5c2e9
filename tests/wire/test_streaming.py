"""Client, gateway and replica on real sockets, in one loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from client import Answer, Client, ask, chat, events
from running import InProcess, base_config

from loadtest.replica import FakeReplica


@pytest.fixture
async def pair() -> AsyncIterator[tuple[FakeReplica, FakeReplica]]:
    async with FakeReplica() as one, FakeReplica() as two:
        yield one, two


@pytest.fixture
async def gateway(
    pair: tuple[FakeReplica, FakeReplica], tmp_path: Path
) -> AsyncIterator[InProcess]:
    async with InProcess(base_config([r.url for r in pair]), tmp_path) as gateway:
        yield gateway


def misbehave(pair: tuple[FakeReplica, FakeReplica], behaviour: str) -> None:
    for replica in pair:
        replica.behaviour = behaviour


def sent_to(pair: tuple[FakeReplica, FakeReplica]) -> int:
    return sum(len(replica.requests) for replica in pair)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_the_text_is_the_same_as_direct(
    pair: tuple[FakeReplica, FakeReplica], gateway: InProcess, stream: bool, path: str
) -> None:
    document = chat("What is a headrace?", stream=stream, max_tokens=20, prompt="A headrace is")
    if path == "/v1/completions":
        del document["messages"]
    else:
        del document["prompt"]
    direct = await ask(pair[0].port, document, path=path)
    through = await ask(gateway.port, document, path=path)
    assert through.complete
    assert through.text == direct.text != ""
    assert len(events(through.body)) == len(events(direct.body))


async def test_many_requests_share_a_connection(gateway: InProcess) -> None:
    client = await Client.open(gateway.port)
    for number in range(5):
        answer = await client.ask(chat(f"question {number}", stream=number % 2 == 0))
        assert answer.complete
        assert answer.text
    client.close()


async def test_a_second_turn_goes_where_the_first_one_is_cached(
    pair: tuple[FakeReplica, FakeReplica], gateway: InProcess
) -> None:
    history = "We were speaking about rivers, mills and turbines at great length. " * 30
    for _ in range(4):
        await ask(gateway.port, chat(history))
    assert sorted(len(replica.requests) for replica in pair) == [0, 4]
    cached = [record.cached_tokens for replica in pair for record in replica.requests]
    assert cached[0] == 0
    assert min(cached[1:]) > 100


# What the replica does, and what the client may see of it (security: a fault is told honestly).
RETRIED = ["reset_before_head", "status=503", "status=502", "garbage", "header_bomb"]
RETRIED += ["interim_flood", "switching", "head_only", "empty", "error_first=503"]


@pytest.mark.parametrize("behaviour", RETRIED)
async def test_faults_before_the_first_event_are_tried_elsewhere(
    pair: tuple[FakeReplica, FakeReplica], gateway: InProcess, behaviour: str
) -> None:
    pair[0].behaviour = behaviour
    for number in range(4):  # whichever replica comes first, the other one answers
        answer = await ask(gateway.port, chat(f"number {number}"))
        assert answer.status == 200
        assert answer.complete
        assert answer.text
        assert answer.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("behaviour", RETRIED)
async def test_faults_of_every_replica_are_an_error_of_the_gateway(
    pair: tuple[FakeReplica, FakeReplica], gateway: InProcess, behaviour: str
) -> None:
    misbehave(pair, behaviour)
    answer = await ask(gateway.port, chat())
    assert answer.status in (502, 503)
    assert answer.json()["error"]["request_id"]
    assert answer.complete
    assert sent_to(pair) <= 3 + 1  # at most three tries, and one fresh connection


CUT = ["kill_mid", "truncate", "garbage_mid", "no_done"]


@pytest.mark.parametrize("behaviour", CUT)
async def test_a_stream_that_breaks_is_never_complete(
    pair: tuple[FakeReplica, FakeReplica], gateway: InProcess, behaviour: str
) -> None:
    misbehave(pair, behaviour)
    answer = await ask(gateway.port, chat(max_tokens=10))
    assert answer.status == 200
    assert not answer.complete
    assert b"[DONE]" not in answer.body
    assert b'"error"' in answer.body.rsplit(b"data: ", 1)[1]
    assert sent_to(pair) == 1


async def test_an_error_event_in_the_middle_passes_unchanged(
    pair: tuple[FakeReplica, FakeReplica], gateway: InProcess
) -> None:
    misbehave(pair, "error_mid")
    answer = await ask(gateway.port, chat(max_tokens=10))
    assert answer.complete
    assert answer.body.endswith(b"}\n\ndata: [DONE]\n\n")
    assert b'data: {"error": {' in answer.body
    assert gateway.metric("headrace_failures_total", "relay", "upstream_error_event") == 1


@pytest.mark.parametrize("behaviour", ["one_byte", "split=3", "keep_alive=0.01,prefill_ms=60"])
async def test_framing_of_the_replica_does_not_matter(
    pair: tuple[FakeReplica, FakeReplica], gateway: InProcess, behaviour: str
) -> None:
    expected = await ask(gateway.port, chat(max_tokens=8))
    misbehave(pair, behaviour)
    answer = await ask(gateway.port, chat(max_tokens=8))
    assert answer.complete
    assert answer.text == expected.text


async def test_usage_is_shown_only_to_who_asked(gateway: InProcess) -> None:
    without = await ask(gateway.port, chat())
    assert b'"usage"' not in without.body
    asked = await ask(gateway.port, chat(stream_options={"include_usage": True}))
    assert b'"usage"' in events(asked.body)[-1]


async def quiet(gateway: InProcess, pair: tuple[FakeReplica, FakeReplica]) -> None:
    """Everything that was borrowed has been given back."""
    for _ in range(200):
        busy = [record for r in pair for record in r.requests if record.outcome == "in_flight"]
        if not busy and gateway.metric("headrace_exchanges_in_flight") == 0:
            break
        await asyncio.sleep(0.01)
    assert gateway.metric("headrace_exchanges_in_flight") == 0
    assert busy == []
    for replica_id in ("r0", "r1"):
        gauges = [
            ("headrace_replica_inflight", replica_id),
            ("headrace_replica_pending_prefill_tokens", replica_id),
            ("headrace_replica_live_kv_tokens", replica_id),
            ("headrace_upstream_connections", replica_id, "busy"),
        ]
        for _ in range(200):  # these gauges are published once a second
            if not any(gateway.metric(*gauge) for gauge in gauges):
                break
            await asyncio.sleep(0.01)
        assert [gateway.metric(*gauge) for gauge in gauges] == [0, 0, 0, 0]
    assert gateway.metric("headrace_ledger_underflow_total") == 0


async def test_a_client_that_leaves_ends_the_work_upstream_in_every_phase(
    pair: tuple[FakeReplica, FakeReplica], gateway: InProcess
) -> None:
    """Also before the first token, for both kinds of answer, by FIN and by reset."""
    loop = asyncio.get_running_loop()
    for behaviour in ("slow_head=30", "stall_first", "stall_mid=3"):
        for stream in (True, False):
            for leave in (Client.close, Client.reset):
                misbehave(pair, behaviour)
                before = sent_to(pair)
                client = await Client.open(gateway.port)
                client.send(chat(stream=stream))
                while sent_to(pair) == before:
                    await asyncio.sleep(0.005)
                await asyncio.sleep(0.02)
                left_at = loop.time()
                leave(client)
                record = max(
                    (r.requests[-1] for r in pair if r.requests), key=lambda r: r.started_at
                )
                while record.aborted_at is None and loop.time() < left_at + 2:
                    await asyncio.sleep(0.005)
                assert record.aborted_at is not None, behaviour
                assert record.aborted_at - left_at < 0.1, behaviour
    await quiet(gateway, pair)


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


async def test_a_thousand_aborted_exchanges_leave_nothing_behind(tmp_path: Path) -> None:
    async with (
        FakeReplica(token_ms=1, prefill_base_ms=2) as one,
        FakeReplica(token_ms=1, prefill_base_ms=2) as two,
        InProcess(
            base_config(
                [one.url, two.url],
                limits={"rules": [{"name": "all", "unit": "total_tokens", "limit": 100_000_000}]},
            ),
            tmp_path,
        ) as gateway,
    ):
        for batch in range(20):
            await asyncio.gather(
                *[abort_at_random(gateway, batch * 50 + number) for number in range(50)]
            )
        await quiet(gateway, (one, two))
        exchanges = gateway.metric("headrace_exchanges_total", "/v1/chat/completions", "499")
        assert exchanges > 300


async def test_a_slow_reader_is_waited_for_and_bounded(
    pair: tuple[FakeReplica, FakeReplica], gateway: InProcess
) -> None:
    """The replica sends 64 MiB as fast as it can; what the gateway holds stays small."""
    misbehave(pair, "flood=64")
    client = await Client.open(gateway.port)
    client.send(chat())
    await client.head()
    await asyncio.sleep(0.3)
    sent = max(r.sent_bytes for replica in pair for r in replica.requests)
    # Most of it waits in the replica, and up to a third in the kernel's buffers of four sockets.
    assert sent < 32 * 1024 * 1024
    received = 0
    while chunk := await client.chunk():
        received += len(chunk)
    assert received > 60 * 1024 * 1024
    client.close()


async def test_errors_of_the_client_cost_no_replica(
    pair: tuple[FakeReplica, FakeReplica], gateway: InProcess
) -> None:
    cases: list[tuple[Any, int]] = [
        (b"{", 400),
        ({"messages": []}, 400),
        (chat(model="nope"), 404),
        (chat("word " * 40_000), 400),
        (chat(max_tokens=40_000), 400),
        (chat(kv_transfer_params={"prompt_token_ids": [1]}), 400),
        ({"model": "demo", "messages": "hi"}, 400),
        ({"model": "demo"}, 400),
    ]
    client = await Client.open(gateway.port)
    for document, status in cases:
        answer: Answer = await client.ask(document)
        assert answer.status == status, document
        assert set(answer.json()["error"]) >= {"message", "type", "param", "code"}
    assert sent_to(pair) == 0
    client.close()


async def test_an_exchange_leaves_nothing_to_the_garbage_collector(gateway: InProcess) -> None:
    """Garbage in circles is freed late, when the caches have long forgotten its memory."""
    client = await Client.open(gateway.port)
    for number in range(3):
        await client.ask(chat(f"warm {number}"))
    gc.collect()
    gc.disable()
    try:
        for number in range(10):
            await client.ask(chat(f"question {number}", stream=number % 2 == 0))
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kinds = {type(thing).__module__.partition(".")[0] for thing in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not kinds & {"core", "proxy", "auth", "ratelimit", "routing", "backend", "_asyncio"}
    client.close()
