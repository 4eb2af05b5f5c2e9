"""Traces as a collector gets them: OTLP over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from client import Client, ask, chat
from collector import Collector, collecting
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from ports import free_port
from running import InProcess, base_config, eventually

from loadtest.replica import FakeReplica

CANARY = "zanzibar-canary"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-00"}


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with collecting() as collector:
        yield collector


async def test_a_collector_gets_the_spans_of_an_exchange(
    collector: Collector, tmp_path: Path
) -> None:
    log = tmp_path / "access.jsonl"
    async with FakeReplica() as replica:
        document = base_config(
            [replica.url],
            log={"access": str(log)},
            tracing={"endpoint": collector.url, "sample_ratio": 1.0},
            admin={"address": f"127.0.0.1:{free_port()}"},
        )
        async with InProcess(document, tmp_path) as gateway:
            client = await Client.open(gateway.port)
            answer = await client.ask(chat(CANARY, max_tokens=12), headers=PARENT)
            client.close()
            accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
            page = await ask(gateway.admin_port, b"", method="GET", path="/metrics", headers=accept)
            plain = await ask(gateway.admin_port, b"", method="GET", path="/metrics")
        sent_on = replica.requests[0].headers["traceparent"]
    # Ending the gateway sent what was waiting.
    by_name = {span.name: span for span in collector.spans}
    server, call = by_name["POST /v1/chat/completions"], by_name["chat demo"]
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    assert server.parent_span_id.hex() == "00f067aa0ba902b7"
    assert (server.kind, call.kind) == (Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CLIENT)
    assert call.parent_span_id == server.span_id
    assert sent_on == f"00-{TRACE}-{call.span_id.hex()}-01"
    phases = [span for span in collector.spans if span.kind == Span.SPAN_KIND_INTERNAL]
    assert {"auth", "tokenize", "route", "connect", "first_token", "relay"} <= by_name.keys()
    assert sum(span.end_time_unix_nano - span.start_time_unix_nano for span in phases) == (
        pytest.approx(server.end_time_unix_nano - server.start_time_unix_nano, abs=20_000)
    )
    attributes = {item.key: item.value for item in call.attributes}
    assert attributes["gen_ai.usage.output_tokens"].int_value == 12
    assert [event.name for event in call.events][:2] == ["first token", "token"]
    instants = [event.time_unix_nano for event in call.events]
    assert instants == sorted(instants)
    assert instants[-1] <= call.end_time_unix_nano
    assert attributes["gen_ai.response.time_to_first_chunk"].double_value > 0
    assert CANARY.encode() not in collector.bytes
    assert answer.text.encode() not in collector.bytes
    assert json.loads(log.read_bytes())["trace_id"] == TRACE
    for name in ("time_to_first_token", "request_duration"):
        lines = [ln for ln in page.body.decode().splitlines() if f"{name}_seconds_bucket" in ln]
        assert sum(TRACE in line for line in lines) == 1
    assert TRACE.encode() not in plain.body


async def test_a_collector_that_refuses_is_counted_and_harms_nobody(
    collector: Collector, tmp_path: Path
) -> None:
    collector.status = 400
    async with FakeReplica() as replica:
        tracing = {"endpoint": collector.url, "sample_ratio": 1.0}
        async with InProcess(base_config([replica.url], tracing=tracing), tmp_path) as gateway:
            client = await Client.open(gateway.port)
            assert (await client.ask(chat(max_tokens=2))).status == 200

            async def counted() -> bool:
                return gateway.metric("headrace_trace_export_failures_total") > 0

            await eventually(counted)
            assert (await client.ask(chat(max_tokens=2))).status == 200
            client.close()


@pytest.mark.parametrize("trouble", ["hangs", "is gone"])
async def test_a_collector_in_trouble_holds_up_neither_requests_nor_the_end(
    collector: Collector, tmp_path: Path, trouble: str
) -> None:
    if trouble == "hangs":
        collector.may_answer.clear()
    endpoint = collector.url if trouble == "hangs" else "http://127.0.0.1:1/v1/traces"
    async with FakeReplica() as replica:
        tracing = {"endpoint": endpoint, "sample_ratio": 1.0}
        async with InProcess(base_config([replica.url], tracing=tracing), tmp_path) as gateway:
            client = await Client.open(gateway.port)
            for _ in range(40):
                assert (await client.ask(chat(max_tokens=2))).status == 200

            async def tried() -> bool:
                failed = gateway.metric("headrace_trace_export_failures_total") > 0
                return failed or bool(collector.bytes)

            await eventually(tried)
            before = time.monotonic()
            assert (await client.ask(chat(max_tokens=2))).status == 200
            client.close()
        ended_s = time.monotonic() - before
    assert ended_s < 20  # it waits for 2 s; an exporter that is not left alone, for a minute
