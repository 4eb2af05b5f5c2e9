"""Where the time of exchanges went, as the log and the answers tell."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from pathlib import Path
from typing import Any

from client import Client, ask, chat
from http2_client import Http2Client
from running import Identity, InProcess, base_config

from loadtest.replica import FakeReplica
from proxy.phases import PHASES


def check_sums(log: Path, expected: int) -> list[dict[str, Any]]:
    """Every moment of every exchange is in one phase, within 2 % as the log rounds."""
    records: list[dict[str, Any]] = [json.loads(line) for line in log.read_bytes().splitlines()]
    assert len(records) == expected
    for record in records:
        total = record["total_ms"]
        phases = sum(record.get(phase + "_ms", 0.0) for phase in PHASES)
        assert abs(phases - total) <= 0.02 * total + 0.02  # each is cut to microseconds
        assert record["status"] == 200, record
        # None where a second try won before the first one had been sent.
        before = record["ttft_ms"] - record.get("first_token_ms", 0.0)
        assert 0 < before < total
    return records


async def test_phases_sum_to_totals_under_load(tmp_path: Path) -> None:
    """Budgets, retries, hedges, HTTP/2, handshakes full and resumed."""
    log = tmp_path / "access.jsonl"
    identity = Identity(tmp_path)
    async with (
        FakeReplica() as one,
        FakeReplica(behaviour="status=503") as two,
        FakeReplica(behaviour="slow_head=0.1") as three,
    ):
        document = base_config(
            [one.url, two.url, three.url],
            log={"access": str(log)},
            budgets={"default": "voice"},
            upstream={
                "hedge": {"after_s": 0.03, "budget_ratio": 1.0},
                "retries": {"budget_ratio": 1.0, "budget_floor": 1000},
                "health": {"failures": 1000, "failure_ratio": 1.0},
            },
        )
        document["listen"]["tls"] = identity.tls
        async with InProcess(document, tmp_path) as gateway:

            async def ask_http1(number: int) -> None:
                client = await Client.open(gateway.port, identity.client_context())
                for turn in range(20):
                    kind = {"stream": bool(turn % 2), "max_tokens": 3}
                    assert (await client.ask(chat(f"{number} {turn}", **kind))).status == 200
                client.close()

            async def ask_http2(number: int) -> None:
                client = await Http2Client.open(gateway.port, identity.client_context())
                for turn in range(5):
                    streams = [
                        client.ask(chat(f"h2 {number} {turn} {n}", max_tokens=3)) for n in range(20)
                    ]
                    for stream_id in streams:
                        assert (await client.answer(stream_id, 60)).complete
                client.close()

            await asyncio.gather(*map(ask_http1, range(50)), *map(ask_http2, range(10)))
            context, body = identity.client_context(), json.dumps(chat(max_tokens=2)).encode()
            session = None
            for _ in range(2):
                session = await asyncio.to_thread(
                    exchange_once, gateway.port, context, session, body
                )
            hedged = gateway.metric("headrace_hedges_total", "won")
    records = check_sums(log, 50 * 20 + 10 * 5 * 20 + 2)
    assert hedged > 0, "no hedge"
    assert any(record["tries"] > 1 for record in records)
    assert {record["tier"] for record in records} == {"voice"}
    shaken = [record for record in records if "tls_ms" in record]
    assert all(record["tls_ms"] > 0 for record in shaken)
    assert sorted(record["tls_resumed"] for record in shaken) == [False] * 61 + [True]


def exchange_once(
    port: int, context: ssl.SSLContext, session: ssl.SSLSession | None, body: bytes
) -> ssl.SSLSession | None:
    """One request on a connection of its own, which resumes `session`; the next one to resume."""
    with (
        socket.create_connection(("127.0.0.1", port), 60) as plain,
        context.wrap_socket(plain, server_hostname="localhost", session=session) as secure,
    ):
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        secure.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        while secure.recv(65_536):
            pass
        return secure.session


async def test_phases_sum_with_a_leg_that_prefills(tmp_path: Path) -> None:
    log = tmp_path / "access.jsonl"
    async with (
        FakeReplica(prefill_tokens_per_s=20_000) as prefill,
        FakeReplica(prefill_tokens_per_s=100) as decode,
    ):
        document = base_config([prefill.url, decode.url], log={"access": str(log)})
        document["replicas"][0]["role"] = "prefill"
        document["replicas"][1] |= {"role": "decode", "weight": 0.1}
        async with InProcess(document, tmp_path) as gateway:
            long = "where does a river begin? " * 100
            answers = await asyncio.gather(
                *[ask(gateway.port, chat(f"{n} {long}", max_tokens=3)) for n in range(20)]
            )
            assert {answer.status for answer in answers} == {200}
            assert gateway.metric("headrace_prefill_legs_total", "used") > 0
    check_sums(log, 20)


async def test_an_answer_says_what_came_before_its_first_byte(tmp_path: Path) -> None:
    async with (
        FakeReplica(prefill_base_ms=30) as replica,
        InProcess(base_config([replica.url]), tmp_path) as gateway,
    ):
        client = await Client.open(gateway.port)
        unasked = await client.ask(chat(max_tokens=3))
        answer = await client.ask(chat(max_tokens=3), headers={"X-Headrace-Timing": "1"})
        full = await client.ask(chat(max_tokens=3), headers={"X-Headrace-Timing": "full"})
        client.close()
    assert "server-timing" not in unasked.headers
    last = full.body.rsplit(b"\n\n", 2)[-2].decode()
    assert last.startswith(": server-timing head;dur=")
    assert "relay;dur=" in last
    assert full.text == answer.text == unasked.text
    parts = dict(part.split(";dur=") for part in answer.headers["server-timing"].split(", "))
    assert list(parts) == [p for p in PHASES if p in parts]
    assert {"head", "gate", "auth", "tokenize", "route", "first_token"} <= parts.keys()
    assert "relay" not in parts
    assert float(parts["first_token"]) >= 30


async def test_the_first_token_is_timed_as_its_client_times_it(tmp_path: Path) -> None:
    log = tmp_path / "access.jsonl"
    own: list[float] = []
    async with (
        FakeReplica(prefill_base_ms=30) as replica,
        InProcess(base_config([replica.url], log={"access": str(log)}), tmp_path) as gateway,
    ):
        client = await Client.open(gateway.port)
        for number in range(10):
            began_at = time.monotonic()
            client.send(chat(f"{number}", max_tokens=2))
            await client.head()
            assert await client.chunk()
            own.append((time.monotonic() - began_at) * 1e3)
            while await client.chunk():
                pass
        client.close()
    reported = [json.loads(line)["ttft_ms"] for line in log.read_bytes().splitlines()]
    apart = [mine - theirs for mine, theirs in zip(own, reported, strict=True)]
    assert min(reported) >= 30
    assert min(apart) >= 0
    assert min(apart) < 20  # one at least that was not held up by this machine
