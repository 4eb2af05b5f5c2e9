"""The fake replica over real sockets: the good answer, each misbehaviour, what it remembers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl

import pytest

from loadtest.replica import FakeReplica
from proxy.serve.throwaway import make_certificate

MESSAGES = [{"role": "user", "content": "Explain how a river carries stone and sand to the sea."}]


class Client:
    """One raw connection."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, replica, tls=None):
        return cls(*await asyncio.open_connection("127.0.0.1", replica.port, ssl=tls))

    def send(self, method="POST", path="/v1/chat/completions", headers=(), **fields):
        body = json.dumps({"model": "demo", "stream": True, "messages": MESSAGES, **fields})
        lines = [f"{method} {path} HTTP/1.1", "host: x", f"content-length: {len(body)}", *headers]
        self.writer.write(("\r\n".join(lines) + "\r\n\r\n" + body).encode())

    async def head(self):
        """(status, headers) of the next head."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = (line.partition(": ") for line in lines[1:-2])
        return int(lines[0].split()[1]), {name: value for name, _, value in fields}

    async def chunk(self):
        size = int((await self.reader.readline()).strip(), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def events(self):
        """Chunks up to the last one."""
        found = []
        while chunk := await self.chunk():
            found.append(chunk)
        return found

    async def answer(self):
        """(status, events) of a stream or (status, document)."""
        status, headers = await self.head()
        if "content-length" in headers:
            body = await self.reader.readexactly(int(headers["content-length"]))
            return status, json.loads(body) if body else None
        return status, await self.events()

    async def rest(self):
        """Everything until the replica closes; ConnectionResetError if it resets."""
        return await self.reader.read(-1)

    async def close(self):
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


@pytest.fixture
async def replica():
    async with FakeReplica(keep_alive_s=0.5) as replica:
        yield replica


@pytest.fixture
async def client(replica):
    client = await Client.open(replica)
    yield client
    await client.close()


def texts(events):
    documents = [json.loads(event[6:]) for event in events if event.startswith(b"data: {")]
    choices = [choice for document in documents for choice in document.get("choices", ())]
    return [choice["delta"]["content"] for choice in choices]


async def test_a_stream_and_the_next_one_on_the_same_connection(replica, client):
    said = []
    for _ in range(2):
        client.send(max_tokens=5, stream_options={"include_usage": True})
        status, events = await client.answer()
        assert status == 200
        assert len(events) == 1 + 5 + 1 + 1
        assert events[-1] == b"data: [DONE]\n\n"
        said.append(texts(events))
        usage = json.loads(events[-2][6:])["usage"]
    assert said[0] == said[1]
    assert said[0][0] == ""
    assert all(said[0][1:])
    assert usage["completion_tokens"] == 5
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] // 16 * 16 > 0
    assert [record.outcome for record in replica.requests] == ["done", "done"]
    assert replica.requests[0].cached_tokens == 0
    assert replica.in_flight == 0


async def test_stream_or_not_says_the_same(client):
    client.send(max_tokens=5)
    _, events = await client.answer()
    client.send(max_tokens=5, stream=False)
    _, document = await client.answer()
    assert document["choices"][0]["message"]["content"] == "".join(texts(events))
    assert document["usage"]["completion_tokens"] == 5


async def test_a_completion(client):
    client.send(path="/v1/completions", prompt="The river", max_tokens=3)
    status, events = await client.answer()
    assert (status, len(events)) == (200, 4)
    assert json.loads(events[0][6:])["object"] == "text_completion"


async def test_the_other_endpoints(replica, client):
    answers = {}
    for path in ("/health", "/v1/models", "/version", "/load", "/fake/state"):
        client.send("GET", path)
        status, answers[path] = await client.answer()
        assert status == 200
    assert answers["/v1/models"]["data"][0]["id"] == "demo"
    assert answers["/fake/state"]["in_flight"] == 0
    client.send(path="/tokenize")
    _, tokens = await client.answer()
    client.send(max_tokens=1)
    await client.answer()
    assert tokens["count"] == replica.requests[-1].prompt_tokens
    for method, path, expected in (("GET", "/nope", 404), ("GET", "/v1/completions", 405)):
        client.send(method, path)
        assert (await client.answer())[0] == expected
    client.send("GET", "/metrics")
    _, headers = await client.head()
    text = await client.reader.readexactly(int(headers["content-length"]))
    assert b'vllm:num_requests_running{engine="0",model_name="demo"} 0.0' in text
    client.send("GET", "/fake/log")
    _, headers = await client.head()
    lines = await client.reader.readexactly(int(headers["content-length"]))
    assert [json.loads(line)["outcome"] for line in lines.splitlines()] == ["done", "done"]


async def test_request_ids_name_the_answer(replica, client):
    client.send(headers=["x-request-id: abc"], max_tokens=1)
    _, events = await client.answer()
    assert json.loads(events[0][6:])["id"] == "chatcmpl-abc"
    assert replica.requests[0].request_id == "abc"
    assert replica.requests[0].body["max_tokens"] == 1


async def test_idle_connections_are_closed(client):
    client.send(max_tokens=1)
    await client.answer()
    assert await client.rest() == b""


async def test_a_client_that_leaves_is_noticed(replica):
    replica.behaviour = "token_ms=50"
    for stream in (True, False):
        client = await Client.open(replica)
        client.send(max_tokens=1000, stream=stream)
        await replica.wait_for(lambda: replica.in_flight == 1)
        if stream:
            await client.head()
            await client.chunk()
        await client.close()
        await replica.wait_for(lambda: replica.in_flight == 0)
        record = replica.requests[-1]
        assert record.outcome == "aborted"
        assert record.aborted_at is not None
        assert record.aborted_at > record.started_at
        assert record.sent_tokens < 1000
    assert not replica.engine.running


async def test_a_client_that_leaves_before_the_head_is_noticed(replica):
    replica.behaviour = "slow_head=60"
    client = await Client.open(replica)
    client.send()
    await replica.wait_for(lambda: len(replica.requests) == 1)
    await client.close()
    await replica.wait_for(lambda: replica.requests[0].outcome == "aborted")


async def test_overload_is_told_as_vllm_does():
    async with FakeReplica(max_running=1, max_queued=0, behaviour="stall_first") as replica:
        clients = [await Client.open(replica) for _ in range(3)]
        clients[0].send()
        await replica.wait_for(lambda: replica.in_flight == 1)
        clients[1].send()
        status, events = await clients[1].answer()
        assert status == 200
        assert json.loads(events[0][6:])["error"]["code"] == 503
        assert events[1] == b"data: [DONE]\n\n"
        clients[2].send(stream=False)
        assert (await clients[2].answer())[0] == 503
        for client in clients:
            await client.close()


async def test_waiting_requests_run_in_turn():
    async with FakeReplica(max_running=1) as replica:
        clients = [await Client.open(replica) for _ in range(3)]
        for client in clients:
            client.send(max_tokens=2)
        for client in clients:
            assert len((await client.answer())[1]) == 4
            await client.close()


async def test_an_api_key_guards_v1_alone():
    async with FakeReplica(api_key="secret") as replica:
        client = await Client.open(replica)
        client.send()
        assert (await client.answer())[0] == 401
        client.send("GET", "/health")
        assert (await client.answer())[0] == 200
        client.send(headers=["authorization: Bearer secret"], max_tokens=1)
        assert (await client.answer())[0] == 200
        await client.close()


# -- misbehaviours ------------------------------------------------------------------------------
async def misbehave(client, text, **fields):
    """Ask by the body field, which a gateway forwards."""
    client.send(user=f"fake:{text}", **{"max_tokens": 4, **fields})


@pytest.mark.parametrize("text", ["reset_before_head", "kill_mid=2"])
async def test_resets(client, text):
    await misbehave(client, text)
    with pytest.raises(ConnectionResetError):
        await client.rest()


async def test_death_closes_the_listener_too(replica, client):
    await misbehave(client, "exit_mid=1")
    assert b"data: " in await client.rest()
    await replica.wait_for(lambda: not replica.connections)
    with pytest.raises(ConnectionRefusedError):
        await Client.open(replica)


async def test_refusing_for_a_while(replica, client):
    replica.behaviour = "refuse=0.05"
    with pytest.raises(ConnectionRefusedError):
        await Client.open(replica)
    client.send("GET", "/health")
    assert (await client.answer())[0] == 200
    await asyncio.sleep(0.1)
    await (await Client.open(replica)).close()


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("head_only", 0), ("truncate=2", 2), ("garbage_mid=1", 1)],
)
async def test_ends_that_are_no_ends(replica, client, text, tokens):
    await misbehave(client, text)
    rest = await client.rest()
    assert rest.startswith(b"HTTP/1.1 200 OK\r\n")
    assert not rest.endswith(b"0\r\n\r\n")
    assert b"[DONE]" not in rest
    assert rest.count(b'"content":" ') == tokens
    assert replica.requests[0].outcome == "faulted"
    assert replica.requests[0].sent_tokens == tokens


@pytest.mark.parametrize(
    ("text", "chunks"), [("empty", 0), ("no_done", 5), ("no_usage", 6), ("keep_alive=60", 7)]
)
async def test_clean_ends(client, text, chunks):
    await misbehave(client, text, stream_options={"include_usage": text != "no_done"})
    status, events = await client.answer()
    assert (status, len(events)) == (200, chunks)


@pytest.mark.parametrize(("text", "before"), [("stall_first", 0), ("stall_mid=2", 3)])
async def test_stalls(replica, client, text, before):
    await misbehave(client, text)
    await client.head()
    for _ in range(before):
        assert (await client.chunk()).startswith(b"data: ")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.reader.read(1), 0.05)
    assert replica.in_flight == 1


async def test_a_stall_may_end(client):
    await misbehave(client, "stall_first=0.02")
    assert len((await client.answer())[1]) == 6


async def test_comments_while_nothing_comes(client):
    await misbehave(client, "stall_first,keep_alive=0.01")
    await client.head()
    for _ in range(3):
        assert await client.chunk() == b": keep-alive\n\n"


@pytest.mark.parametrize(
    ("text", "before", "code"), [("error_first", 0, 503), ("error_mid=2", 3, 500)]
)
async def test_errors_in_a_200(client, text, before, code):
    await misbehave(client, text)
    status, events = await client.answer()
    assert status == 200
    assert len(events) == before + 2
    assert json.loads(events[-2][6:])["error"]["code"] == code
    assert events[-1] == b"data: [DONE]\n\n"


@pytest.mark.parametrize("code", [400, 429, 500, 503])
async def test_error_answers(client, code):
    await misbehave(client, f"status={code}")
    status, document = await client.answer()
    assert status == document["error"]["code"] == code


async def test_garbage_instead_of_http(client):
    await misbehave(client, "garbage")
    assert not (await client.rest()).startswith(b"HTTP/")


async def test_a_header_bomb(client):
    await misbehave(client, "header_bomb=200000")
    head = await client.rest()
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert head.index(b"\r\n\r\n") >= 200000


async def test_an_interim_flood(client):
    await misbehave(client, "interim_flood=50")
    for _ in range(50):
        assert (await client.head())[0] == 102
    assert len((await client.answer())[1]) == 6


async def test_an_upgrade_that_nobody_asked_for(client):
    await misbehave(client, "switching")
    assert (await client.head())[0] == 101


async def test_a_flood_waits_for_its_reader(replica, client):
    await misbehave(client, "flood=32")
    await client.head()
    await asyncio.sleep(0.1)
    assert 0 < replica.requests[0].sent_bytes < 16 * 2**20
    total = 0
    while chunk := await client.chunk():
        total += len(chunk)
    assert total > 30 * 2**20
    assert replica.requests[0].outcome == "done"


@pytest.mark.parametrize("text", ["one_byte", "split=7"])
async def test_sliced_writes_carry_the_same_bytes(client, text):
    answers = []
    for user in (None, f"fake:{text}", None):
        client.send(user=user, max_tokens=3, headers=["x-request-id: same"])
        answers.append((await client.answer())[1])
    said = [texts(events) for events in answers]
    assert said[0] == said[1] == said[2]
    assert len(answers[1]) == 5


async def test_a_slow_head(client):
    loop = asyncio.get_running_loop()
    began = loop.time()
    await misbehave(client, "slow_head=0.05")
    assert (await client.head())[0] == 200
    assert loop.time() - began >= 0.05


async def test_times_between_tokens_are_kept(client):
    loop = asyncio.get_running_loop()
    began = loop.time()
    await misbehave(client, "prefill_ms=20,token_ms=10,tokens=4")
    await client.answer()
    assert loop.time() - began >= 0.05


async def test_stamps_grow(client):
    await misbehave(client, "stamp")
    _, events = await client.answer()
    stamps = [json.loads(event[6:])["sent_at_ns"] for event in events[1:-1]]
    assert len(stamps) == 4
    assert stamps == sorted(stamps)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("kill_mid=1", b"HTTP/1.1 200"),
        ("truncate=1", b"HTTP/1.1 200"),
        ("error_mid=1", b"HTTP/1.1 500"),
    ],
)
async def test_whole_answers_misbehave_too(replica, client, text, seen):
    await misbehave(client, text, stream=False)
    assert (await client.reader.readline()).startswith(seen)
    await replica.wait_for(lambda: replica.in_flight == 0)
    assert replica.requests[0].outcome == "faulted"


async def test_by_header_and_by_process(replica, client):
    client.send("PUT", "/fake/behaviour")
    assert (await client.answer())[0] == 400
    client.writer.write(
        b"PUT /fake/behaviour HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nhealth=500"
    )
    assert await client.answer() == (200, {"health": 500.0})
    client.send("GET", "/health")
    assert (await client.answer())[0] == 500
    replica.behaviour = "tokens=2"
    client.send(max_tokens=9)
    assert len((await client.answer())[1]) == 4
    client.send(headers=["x-fake: tokens=3"], max_tokens=9)
    assert len((await client.answer())[1]) == 5
    client.send(headers=["x-fake: nonsense"])
    assert (await client.answer())[0] == 400


async def test_bad_http_is_refused_and_closed(client):
    client.writer.write(b"NONSENSE\r\n\r\n")
    assert (await client.rest()).startswith(b"HTTP/1.1 400 Bad Request")


async def test_a_connection_is_closed_when_the_client_asks_for_it(client):
    client.send(headers=["connection: close"], max_tokens=2)
    rest = await asyncio.wait_for(client.rest(), 0.4)
    assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def test_pipelined_requests_are_answered_in_turn(replica, client):
    for tokens in (1, 2, 3):
        client.send(max_tokens=tokens)
    lengths = [len((await client.answer())[1]) for _ in range(3)]
    assert lengths == [3, 4, 5]


async def test_tls(tmp_path):
    files = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    async with FakeReplica(tls=context) as replica:
        assert replica.url == f"https://127.0.0.1:{replica.port}"
        trust = ssl.create_default_context(cafile=files.authority)
        client = await Client.open(replica, trust)
        client.send(max_tokens=2)
        assert len((await client.answer())[1]) == 4
        await client.close()


@pytest.mark.parametrize("passes", range(4))
async def test_a_connection_that_is_being_accepted_at_the_end_is_reset(passes):
    async with FakeReplica() as replica:
        client = socket.create_connection(("127.0.0.1", replica.port))
        client.setblocking(False)
        for _ in range(passes):
            await asyncio.sleep(0)
    with client:
        async with asyncio.timeout(20):
            with pytest.raises(ConnectionResetError):
                await asyncio.get_running_loop().sock_recv(client, 1)
