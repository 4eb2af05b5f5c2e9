"""Every path that a model answers, and every fault of its replicas: what the client gets, what is
charged, what the log says, and that the work upstream ends. No path is exempt."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from client import Answer, Client
from listening import served
from running import InProcess, base_config

import proxy.access_log
from loadtest.replica import FakeReplica
from loadtest.replica.record import Record
from proxy.surfaces.registry import SURFACES

ASK = [{"role": "user", "content": "What is a headrace?"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": ASK, "max_tokens": 8},
    "/v1/completions": {"prompt": "A headrace is", "max_tokens": 8},
    "/v1/messages": {"messages": ASK, "max_tokens": 8, "system": "Be brief."},
    "/v1/messages/count_tokens": {"messages": ASK},
    "/v1/responses": {"input": "What is a headrace?", "max_output_tokens": 8},
    "/v1/embeddings": {"input": ["one", "two"]},
    "/v1/rerank": {"query": "river", "documents": ["one", "two"]},
    "/rerank": {"query": "river", "documents": ["one", "two"]},
    "/v2/rerank": {"query": "river", "documents": ["one", "two"]},
    "/v1/score": {"text_1": "river", "text_2": ["one", "two"]},
    "/score": {"text_1": "river", "text_2": ["one", "two"]},
    "/classify": {"input": "river"},
    "/pooling": {"input": "river"},
    "/tokenize": {"prompt": "river"},
    "/detokenize": {"tokens": [5, 6]},
    "/v1/audio/transcriptions": {"file": "sound"},
}
OPENED = ["/v1/audio/transcriptions"]
STREAMED = ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"]
FREE = ["/v1/messages/count_tokens", "/tokenize", "/detokenize", "/v1/audio/transcriptions"]
TERMINATORS = {
    "/v1/chat/completions": b"data: [DONE]\n\n",
    "/v1/completions": b"data: [DONE]\n\n",
    "/v1/messages": b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    "/v1/responses": b'"type":"response.completed"}\n\n',
}


@dataclass(frozen=True)
class Call:
    path: str
    stream: bool

    @property
    def body(self) -> dict[str, Any]:
        body = {"model": "alias", **BODIES[self.path]}
        return {**body, "stream": True} if self.stream else body


CALLS = [*[Call(path, True) for path in STREAMED], *[Call(path, False) for path in BODIES]]


@dataclass(frozen=True)
class End:
    """`status` of the answer, `reason` in the log; `cut`: the stream ends with an error event and
    without its terminator, and what was sent is charged."""

    status: int
    reason: str
    cut: bool = False


REFUSED = End(503, "upstream_refused or no_replica")  # that it refuses is soon known
RESET = End(502, "upstream_reset")
OVERLOADED = End(503, "upstream_overloaded")
NO_HTTP = End(502, "upstream_protocol_error")
SILENT = End(504, "upstream_timeout_first_token")


@dataclass(frozen=True)
class Fault:
    """What the replicas do (`behaviour`), and how streams and answers in one piece end (None: the
    fault is none for them)."""

    behaviour: str
    stream: End | None
    whole: End | None

    def end(self, call: Call) -> End | None:
        if self.behaviour == "empty" and call.path in OPENED:
            return None  # what was opened may be answered by nothing
        return self.stream if call.stream else self.whole


FAULTS = [
    Fault("refuse", REFUSED, REFUSED),
    Fault("reset_before_head", RESET, RESET),
    Fault("status=503", OVERLOADED, OVERLOADED),
    Fault("status=502", End(502, "upstream_error"), End(502, "upstream_error")),
    Fault("error_first=503", OVERLOADED, OVERLOADED),
    Fault("stall_first", SILENT, SILENT),
    Fault("stall_mid=2,token_ms=5", End(200, "upstream_timeout_idle", cut=True), SILENT),
    Fault("kill_mid=2,token_ms=5", End(200, "upstream_reset", cut=True), RESET),
    Fault("truncate=2,token_ms=5", End(200, "upstream_reset", cut=True), None),
    Fault("garbage", NO_HTTP, NO_HTTP),
    Fault("garbage_mid=2,token_ms=5", End(200, "upstream_protocol_error", cut=True), None),
    Fault("header_bomb", NO_HTTP, NO_HTTP),
    Fault("interim_flood", NO_HTTP, NO_HTTP),
    Fault("switching", NO_HTTP, NO_HTTP),
    Fault("no_done", End(200, "upstream_error", cut=True), None),
    Fault("head_only", RESET, RESET),
    Fault("empty", End(502, "upstream_error"), End(502, "upstream_error")),
]
STORED = {
    "reset_before_head": RESET,
    "status=503": OVERLOADED,
    "stall_first": SILENT,
    "kill_mid": RESET,
    "truncate": RESET,
    "garbage": NO_HTTP,
    "header_bomb": NO_HTTP,
    "interim_flood": NO_HTTP,
    "switching": NO_HTTP,
}
"""Faults at `/v1/responses/{id}`, which one replica alone can answer, and how they end."""


async def until(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < give_up_at, "not in time"
        await asyncio.sleep(0.002)


class House:
    """A gateway in this loop, its replicas and its log."""

    def __init__(
        self, gateway: InProcess, replicas: Sequence[FakeReplica], access_path: Path
    ) -> None:
        self.gateway = gateway
        self.replicas = replicas
        self._access_path = access_path

    async def record_of(self, request_id: str) -> dict[str, Any]:
        """Its line in the log: exactly one."""
        give_up_at = time.monotonic() + 20
        while True:
            lines = [json.loads(line) for line in self._access_path.read_text().splitlines()]
            found = [line for line in lines if line["request_id"] == request_id]
            if found:
                assert len(found) == 1
                return dict(found[0])
            assert time.monotonic() < give_up_at, "not in the log"
            await asyncio.sleep(0.005)

    async def ask(self, call: Call) -> tuple[Answer, dict[str, Any]]:
        client = await Client.open(self.gateway.port)
        try:
            answer = await client.ask(call.body, path=call.path)
        finally:
            client.close()
        return answer, await self.record_of(answer.headers["x-request-id"])

    async def ends(self) -> None:
        """All work upstream has ended, and all that was borrowed was given back."""
        in_flight = self.gateway.metric
        await until(lambda: not any(replica.in_flight for replica in self.replicas))
        await until(lambda: not in_flight("headrace_exchanges_in_flight"))


@pytest_asyncio.fixture
async def house(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[House]:
    """A replica that falls silent, as the fault of a test may have it do, is given up after a
    moment; others may be as slow as the machine."""
    fault = getattr(request.node, "callspec", None)
    silent = fault is not None and "stall" in str(fault.params.get("fault"))
    patience_s = getattr(request, "param", 0.2 if silent else 20.0)
    monkeypatch.setattr(proxy.access_log, "FLUSH_S", 0.001)
    access_path = tmp_path / "access.jsonl"
    async with FakeReplica() as one, FakeReplica() as two:
        document = base_config(
            [one.url, two.url],
            log={"access": str(access_path)},
            passthrough=[{"path": path} for path in OPENED],
            upstream={
                "timeouts": dict.fromkeys(("first_token_s", "response_s", "idle_s"), patience_s),
                "retries": {"budget_floor": 10_000},
                "health": {"failures": 10_000},
                "active_health": False,
                "metrics": "off",
            },
        )
        document["models"][0]["aliases"] = ["alias"]
        async with InProcess(document, tmp_path) as gateway:
            house = House(gateway, (one, two), access_path)
            yield house
            await house.ends()


def error_of(path: str, document: dict[str, Any]) -> dict[str, Any]:
    """The error in a body or event, having the shape of the path."""
    if path.startswith("/v1/messages"):
        assert document["type"] == "error"
        assert document["request_id"]
        assert document["error"]["type"].endswith(("_error", "_too_large"))
    error: dict[str, Any] = document["error"]
    assert error["message"]
    return error


def last_event(path: str, body: bytes) -> dict[str, Any]:
    """The data of the last event, which says that the answer failed."""
    assert body.endswith(b"\n\n")
    name, _, data = body[:-2].rpartition(b"\n\n")[2].rpartition(b"data: ")
    assert name == (b"" if TERMINATORS[path].startswith(b"data") else b"event: error\n")
    return dict(json.loads(data))


async def test_no_path_is_left_out(house: House) -> None:
    assert list(BODIES) == [*SURFACES, *OPENED]


async def test_every_answer_is_the_replicas_own(house: House) -> None:
    for call in CALLS:
        answer, record = await house.ask(call)
        assert answer.status == 200, (call, answer)
        assert answer.complete
        if call.stream:
            assert answer.body.endswith(TERMINATORS[call.path])
        else:
            assert answer.json()
        assert record["route"] == call.path
        assert record["model"] == "demo"
        assert record["reason"] == "ok"
        assert "tokens_estimated" not in record
        if call.path in FREE:
            assert record["settled_tokens"] == 0
        else:
            used = record["prompt_tokens"] + record["completion_tokens"]
            assert record["settled_tokens"] == used
            assert record["prompt_tokens"] > 0
            generated = call.path in STREAMED
            assert record["completion_tokens"] == (8 if generated else 0), call


async def test_what_is_counted_before_is_what_the_replica_counts(house: House) -> None:
    """The prompt as the gateway renders it has as many tokens as the replica says."""
    for path in STREAMED:
        answer, record = await house.ask(Call(path, stream=False))
        usage = answer.json()["usage"]
        given = usage.get("prompt_tokens", usage.get("input_tokens"))
        given += usage.get("cache_read_input_tokens", 0)
        assert record["prompt_tokens"] == given
        assert record["reserved_tokens"] == given + 8


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.behaviour)
async def test_a_fault_of_all_replicas_is_told_honestly(house: House, fault: Fault) -> None:
    calls = [call for call in CALLS if fault.end(call)]
    for replica in house.replicas:
        replica.behaviour = fault.behaviour
    if fault.behaviour == "refuse":  # also on connections that are being made
        for _ in range(3):
            await asyncio.sleep(0.02)
            for replica in house.replicas:
                replica.reset_connections()
    began_at = time.monotonic()
    results = await asyncio.gather(*[house.ask(call) for call in calls])
    assert time.monotonic() - began_at < 15, "by no patience but that of this test"
    for call, (answer, record) in zip(calls, results, strict=True):
        end = fault.end(call)
        assert end is not None
        assert (answer.status, record["status"]) == (end.status, end.status), (call, answer)
        assert record["reason"] in end.reason.split(" or "), call
        assert answer.complete is not end.cut
        if end.cut:
            error = error_of(call.path, last_event(call.path, answer.body))
            assert TERMINATORS[call.path] not in answer.body
            assert record["settled_tokens"] > record["prompt_tokens"] > 0
        else:
            error = error_of(call.path, answer.json())
            assert "settled_tokens" not in record
            assert ("retry-after" in answer.headers) is (end.status == 503)
        assert error["code"] == record["reason"]
    await house.ends()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.behaviour)
async def test_a_fault_of_one_replica_costs_nothing_that_it_need_not(
    house: House, fault: Fault
) -> None:
    """What can be tried elsewhere is, also where the fault comes before all others."""
    house.replicas[0].behaviour = fault.behaviour

    async def ask(call: Call) -> None:
        end = fault.end(call)
        if end is not None and not end.cut and end.status != 504:
            answer, record = await house.ask(call)
            assert answer.status == 200, (call, answer)
            assert record["reason"] == "ok"
            assert answer.complete

    await asyncio.gather(*[ask(call) for call in CALLS])


@pytest.mark.parametrize("house", [30.0], indirect=True)
@pytest.mark.parametrize("behaviour", ["slow_head=30", "stall_first", "stall_mid=2"])
async def test_a_client_that_leaves_ends_the_work_upstream(house: House, behaviour: str) -> None:
    for replica in house.replicas:
        replica.behaviour = behaviour

    async def arrive(call: Call) -> Client:
        client = await Client.open(house.gateway.port)
        client.send(call.body, path=call.path)
        if call.stream and behaviour == "stall_mid=2":
            await client.head()
        return client

    def theirs() -> list[Record]:
        return [record for replica in house.replicas for record in replica.requests]

    for start in range(0, len(CALLS), 4):  # no more than a new replica is given
        calls = CALLS[start : start + 4]
        clients = [await arrive(call) for call in calls]
        await until(lambda: len(theirs()) == start + len(calls))  # noqa: B023
        for client in clients:
            client.close()
        left_at = time.monotonic()
        await house.ends()
        assert time.monotonic() - left_at < 5, "by no deadline, which is far away"
    for record in theirs():
        await until(lambda: record.aborted_at is not None)  # noqa: B023
        line = await house.record_of(record.request_id)
        assert line["status"] == 499 or line["reason"] == "client_gone"
        begun = behaviour == "stall_mid=2" and line.get("stream", False)
        assert ("settled_tokens" in line) is begun, line


async def test_a_slow_reader_is_bounded(house: House) -> None:
    for replica in house.replicas:
        replica.behaviour = "flood=64"
    clients = []
    for path in STREAMED:
        client = await Client.open(house.gateway.port)
        client.send(Call(path, True).body, path=path)
        await client.head()
        clients.append(client)
    await until(lambda: sum(len(replica.requests) for replica in house.replicas) == len(STREAMED))
    await asyncio.sleep(0.2)
    sent = [record.sent_bytes for replica in house.replicas for record in replica.requests]
    assert len(sent) == len(STREAMED)
    assert 0 < max(sent) < 32 * 1024 * 1024
    for client in clients:
        client.reset()


async def test_what_the_client_does_wrong_reaches_no_replica(house: House) -> None:
    client = await Client.open(house.gateway.port)
    for path, body in BODIES.items():
        cases: list[tuple[Any, str, int]] = [
            (b"{", "POST", 400),
            (body, "POST", 400),
            ({**body, "model": "nope"}, "POST", 404),
            (b"", "GET", 405),
        ]
        if path not in OPENED:
            steering = {**body, "model": "demo", "kv_transfer_params": {"x": 1}}
            cases.append((steering, "POST", 400))
        for document, method, status in cases:
            answer = await client.ask(document, path=path, method=method)
            assert answer.status == status, document
            error_of(path, answer.json())
            record = await house.record_of(answer.headers["x-request-id"])
            assert record["route"] == path
            assert "settled_tokens" not in record
    client.close()
    assert not any(replica.requests for replica in house.replicas)


async def make_response(house: House, **fields: Any) -> dict[str, Any]:
    call = Call("/v1/responses", stream=False)
    client = await Client.open(house.gateway.port)
    answer = await client.ask({**call.body, **fields}, path=call.path)
    client.close()
    assert answer.status == 200, answer
    return dict(answer.json())


async def test_a_response_is_asked_for_where_it_was_made(house: House) -> None:
    client = await Client.open(house.gateway.port)
    for _ in range(4):
        made = await make_response(house)
        path = f"/v1/responses/{made['id']}"
        shown = await client.ask(b"", method="GET", path=path)
        assert (shown.status, shown.json()) == (200, made)
        cancelled = await client.ask(b"", method="POST", path=path + "/cancel")
        assert cancelled.json()["status"] == "cancelled"
        record = await house.record_of(cancelled.headers["x-request-id"])
        assert (record["route"], record["settled_tokens"]) == ("/v1/responses/{id}", 0)
    client.close()
    asked = [path for replica in house.replicas for path in replica.stored.asked]
    assert len(asked) == 8  # none of them twice


async def test_a_response_goes_on_where_it_was_made(house: House) -> None:
    first = await make_response(house)
    holder = next(replica for replica in house.replicas if replica.requests)
    for _ in range(3):
        await make_response(house, previous_response_id=first["id"])
    assert len(holder.requests) == 4


async def test_what_another_worker_made_is_found(house: House) -> None:
    made = await make_response(house)
    house.gateway.worker._snapshots.current.pins._pins.clear()
    client = await Client.open(house.gateway.port)
    for _ in range(2):
        shown = await client.ask(b"", method="GET", path=f"/v1/responses/{made['id']}")
        assert (shown.status, shown.json()) == (200, made)
    client.close()
    asked = [path for replica in house.replicas for path in replica.stored.asked]
    assert len(asked) <= 3


async def test_an_id_that_nobody_was_given_is_not_found(house: House) -> None:
    client = await Client.open(house.gateway.port)
    for path in ("/v1/responses/resp_1", "/v1/responses/resp_1/cancel", "/v1/responses/a/b"):
        method = "POST" if path.endswith("cancel") else "GET"
        answer = await client.ask(b"", method=method, path=path)
        assert (answer.status, answer.json()["error"]["type"]) == (404, "invalid_request_error")
    body = {**Call("/v1/responses", stream=False).body, "previous_response_id": "resp_1"}
    answer = await client.ask(body, path="/v1/responses")
    assert (answer.status, answer.json()["error"]["param"]) == (404, "previous_response_id")
    client.close()
    assert not any(replica.stored.asked or replica.requests for replica in house.replicas)


async def test_canaries_and_fallbacks_at_every_path(tmp_path: Path) -> None:
    """What the replicas of one model cannot answer those of another one do, and say so."""
    async with FakeReplica(model="old", behaviour="status=503") as old, FakeReplica() as new:
        document = base_config([new.url])
        base = document["models"][0]
        document["models"] = [
            base,
            {**base, "name": "old", "aliases": ["alias"], "fallback": ["demo"]},
            {**base, "name": "next", "canaries": [{"to": "demo", "percent": 100}]},
        ]
        document["replicas"] += [
            {"url": old.url, "model": "old", "id": "old"},
            {"url": old.url.replace("127.0.0.1", "localhost"), "model": "next", "id": "next"},
        ]
        document["upstream"] = {"active_health": False, "metrics": "off"}
        async with InProcess(document, tmp_path) as gateway:
            client = await Client.open(gateway.port)
            calls = [call for call in CALLS if call.path not in OPENED]
            for call in calls:
                answer = await client.ask(call.body, path=call.path)
                assert (answer.status, answer.complete) == (200, True), call
                assert answer.headers["x-headrace-model"] == "demo"
                assert answer.headers["x-headrace-fallback"] == "old"
                answer = await client.ask({**call.body, "model": "next"}, path=call.path)
                assert answer.status == 200, call
                assert answer.headers["x-headrace-model"] == "demo"
                assert "x-headrace-fallback" not in answer.headers
            client.close()
        assert len(new.requests) == 2 * len(calls)


@pytest.mark.parametrize("cancel", [False, True])
async def test_a_stored_response_whose_replica_is_gone_is_told_so(
    house: House, cancel: bool
) -> None:
    made = await make_response(house)
    for replica in house.replicas:
        replica.behaviour = "refuse"
    for _ in range(3):
        await asyncio.sleep(0.02)
        for replica in house.replicas:
            replica.reset_connections()
    client = await Client.open(house.gateway.port)
    path = f"/v1/responses/{made['id']}" + ("/cancel" if cancel else "")
    answer = await client.ask(b"", method="POST" if cancel else "GET", path=path)
    client.close()
    assert answer.status == 503
    assert answer.headers["retry-after"]
    record = await house.record_of(answer.headers["x-request-id"])
    assert answer.json()["error"]["code"] == record["reason"]
    assert record["reason"] in ("upstream_refused", "no_replica")
    assert "settled_tokens" not in record


@pytest.mark.parametrize("cancel", [False, True])
@pytest.mark.parametrize("fault", STORED)
async def test_a_fault_at_a_stored_response_is_told_honestly(
    house: House, fault: str, cancel: bool
) -> None:
    made = await make_response(house)
    for replica in house.replicas:
        replica.behaviour = fault
    client = await Client.open(house.gateway.port)
    path = f"/v1/responses/{made['id']}" + ("/cancel" if cancel else "")
    answer = await client.ask(b"", method="POST" if cancel else "GET", path=path)
    client.close()
    end = STORED[fault]
    record = await house.record_of(answer.headers["x-request-id"])
    assert (answer.status, record["status"], record["reason"]) == (
        end.status,
        end.status,
        end.reason,
    )
    assert answer.complete
    assert error_of("/v1/responses", answer.json())["code"] == end.reason
    assert ("retry-after" in answer.headers) is (end.status == 503)
    assert (record["route"], "settled_tokens" in record) == ("/v1/responses/{id}", False)
    asked = [path for replica in house.replicas for path in replica.stored.asked]
    assert 1 <= len(asked) <= 4, "no other replica can have it, and this one is not pestered"


@pytest.mark.parametrize("house", [30.0], indirect=True)
async def test_who_leaves_a_stored_response_is_not_waited_for(house: House) -> None:
    made = await make_response(house)
    for replica in house.replicas:
        replica.behaviour = "stall_first"
    for method, end in (("GET", ""), ("POST", "/cancel")):
        left = sum(replica.stored.left for replica in house.replicas)
        asked = sum(len(replica.stored.asked) for replica in house.replicas)
        client = await Client.open(house.gateway.port)
        client.send(b"", method=method, path=f"/v1/responses/{made['id']}{end}")
        await until(lambda: sum(len(r.stored.asked) for r in house.replicas) > asked)  # noqa: B023
        client.close()
        await until(lambda: sum(r.stored.left for r in house.replicas) == left + 1)  # noqa: B023


@pytest.mark.parametrize("length", [b"content-length: 100", b"transfer-encoding: chunked"])
@pytest.mark.parametrize("reset", [False, True])
async def test_what_was_opened_and_breaks_is_never_complete(
    tmp_path: Path, length: bytes, reset: bool
) -> None:
    """Sound and pictures flow as they come, so a replica that dies in them is a cut answer."""
    chunked = length.startswith(b"transfer")
    body = b"a\r\n0123456789\r\n" if chunked else b"0123456789"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\n" + length + b"\r\n\r\n" + body
        )
        await writer.drain()
        await asyncio.sleep(0.05)
        if reset:
            writer.transport.abort()
        writer.close()

    async with served(answer) as port:
        document = base_config(
            [f"http://127.0.0.1:{port}"],
            log={"access": str(tmp_path / "access.jsonl")},
            passthrough=[{"path": "/v1/audio/speech", "model": "demo", "methods": ["GET", "POST"]}],
            upstream={"active_health": False, "metrics": "off", "pool": {"warm": 0}},
        )
        async with InProcess(document, tmp_path) as gateway:
            for method in ("GET", "POST"):
                client = await Client.open(gateway.port)
                got = await client.ask(b"", method=method, path="/v1/audio/speech")
                client.close()
                assert (got.status, got.complete, got.body) == (200, False, b"0123456789")
                house = House(gateway, (), tmp_path / "access.jsonl")
                record = await house.record_of(got.headers["x-request-id"])
                assert (record["reason"], record["settled_tokens"]) == ("upstream_reset", 0)


async def test_no_path_leads_round_the_table(house: House) -> None:
    made = await make_response(house)
    before = [len(r.requests) + len(r.stored.asked) for r in house.replicas]
    stored = f"/v1/responses/{made['id']}"
    opened = OPENED[0]
    paths = [
        *("/v1/audio/..%2faudio/transcriptions", "/v1/audio/%2e%2e/audio/transcriptions"),
        *("//v1/audio/transcriptions", "/v1//audio/transcriptions", opened + "/", opened + "/."),
        *(opened + "%00", opened + ";x", opened + "%20", opened.replace("a", "%61", 1)),
        *(opened.upper(), "/v1/responses/../audio/transcriptions", opened.replace("/", "%2f")),
        *("/v1/chat/../chat/completions", "/v1/chat/completions/", "/v1/chat%2fcompletions"),
        *("/metrics", "/health", "/invocations", "/v1/load_lora_adapter", "/abort_requests"),
        *("/kv_event_sources", "/v1/chat/completions/render", "/inference/v1/generate"),
        *(stored + "/input_items", stored + "/cancel/", stored + "%2fcancel", stored + "/../x"),
        *(stored[:-1], stored + "0", stored[:-1] + ("0" if stored[-1] != "0" else "1")),
        *(stored.replace("resp_", "resp_0"), stored.upper(), stored + "/cancel/cancel"),
        *("/v1/responses/", "/v1/responses/resp_", "/v1/responses/resp_" + "0" * 32),
    ]
    client = await Client.open(house.gateway.port)
    for path in paths:
        for method in ("GET", "POST"):
            body = Call(opened, False).body if method == "POST" else b""
            answer = await client.ask(body, method=method, path=path)
            assert answer.status in (400, 404, 405), (method, path, answer)
            if not answer.complete or answer.headers.get("connection") == "close":
                client.close()
                client = await Client.open(house.gateway.port)
    client.close()
    assert [len(r.requests) + len(r.stored.asked) for r in house.replicas] == before


async def test_names_that_dns_does_not_know_are_replicas_that_are_away(tmp_path: Path) -> None:
    document = base_config(
        ["http://nowhere.invalid:8000", "http://no-such.invalid:8000"],
        log={"access": str(tmp_path / "access.jsonl")},
        passthrough=[{"path": path} for path in OPENED],
        upstream={"active_health": False, "metrics": "off", "pool": {"warm": 0}},
    )
    document["models"][0]["aliases"] = ["alias"]
    async with InProcess(document, tmp_path) as gateway:
        client = await Client.open(gateway.port)
        for call in CALLS:
            answer = await client.ask(call.body, path=call.path)
            assert answer.status == 503, call
            assert answer.headers["retry-after"]
            code = error_of(call.path, answer.json())["code"]
            assert code in ("upstream_unreachable", "upstream_refused", "no_replica"), call
            assert "invalid" not in answer.body.decode(), "whom we ask is nobody's business"
        client.close()


async def test_pictures_reach_no_model_that_takes_text_alone(house: House) -> None:
    image = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}
    block = {"type": "image", "source": {"type": "url", "url": "http://169.254.169.254/"}}
    cases: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [image]}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": [block]}]}),
        ("/v1/responses", {"input": [{"role": "user", "content": [image]}]}),
        ("/v1/embeddings", {"messages": [{"role": "user", "content": [image]}]}),
        ("/pooling", {"messages": [{"role": "user", "content": [image]}]}),
        ("/v1/rerank", {"query": "river", "documents": {"content": [image]}}),
        ("/v1/score", {"text_1": image, "text_2": "river"}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": [block]}]}),
        ("/tokenize", {"messages": [{"role": "user", "content": [image]}]}),
    ]
    client = await Client.open(house.gateway.port)
    for path, body in cases:
        answer = await client.ask({"model": "demo", **body}, path=path)
        assert answer.status == 400, path
        assert "takes text only" in error_of(path, answer.json())["message"], path
    client.close()
    assert not any(replica.requests for replica in house.replicas)
