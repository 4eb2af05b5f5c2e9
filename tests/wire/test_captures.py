"""Real answers of vLLM, replayed by a scripted upstream and split at random reads."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from client import Answer, ask, chat
from listening import served
from running import SHARED, InProcess, base_config

FIXTURES = SHARED / "vllm" / "fixtures"
PATTERNS = ("sse_chat*.bin", "sse_completion*.bin", "sse_keepalive*.bin")
CAPTURES = sorted(
    path
    for folder in (FIXTURES, FIXTURES / "rust")
    for pattern in PATTERNS
    for path in folder.glob(pattern)
    if b"...CUT..." not in path.read_bytes()
)
CUT = sorted(path for path in FIXTURES.glob("sse_*.bin") if b"...CUT..." in path.read_bytes())

# Of our own making, in the same framing, so that the same ground is covered anywhere.
DELTA = 'data: {"id":"c-1","choices":[{"index":0,"delta":{"content":"naïve 水"}}]}\n\n'.encode()
USAGE = b'data: {"id":"c-1","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"


def chunked(*events: bytes) -> bytes:
    head = (
        b"HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 15:07:16 GMT\r\nserver: uvicorn\r\n"
        b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    return head + b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in events) + b"0\r\n\r\n"


OWN = {
    "plain": chunked(DELTA, DELTA, DONE),
    "usage": chunked(DELTA, DELTA, USAGE, DONE),
    "comments": chunked(b": keep-alive\n\n", DELTA, b": keep-alive\n\n", DELTA, DONE),
    "crlf": chunked(*(e.replace(b"\n", b"\r\n") for e in (DELTA, DELTA, DONE))),
}


def body_of(capture: bytes) -> bytes:
    """The body without its chunk framing."""
    rest = capture.partition(b"\r\n\r\n")[2]
    body = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            return body
        body += rest[:length]
        rest = rest[length + 2 :]


def without_usage_chunk(body: bytes) -> bytes:
    events = body.split(b"\n\n")
    kept = [e for e in events if not (b'"choices":[]' in e and b'"usage":{' in e)]
    return b"\n\n".join(kept)


@asynccontextmanager
async def scripted(capture: bytes, seed: int) -> AsyncIterator[str]:
    """Answers every inference request with `capture` in random pieces, then closes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"POST"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                return
            cut = random.Random(seed)
            rest = capture
            while rest:
                size = cut.choice((1, 2, 3, 7, 40, 200, 1000))
                writer.write(rest[:size])
                rest = rest[size:]
                await writer.drain()
                await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async with served(answer) as port:
        yield f"http://127.0.0.1:{port}"


TYPED = {
    "messages": {"messages": chat()["messages"], "max_tokens": 3},
    "responses": {"input": "Hello", "max_output_tokens": 3},
}
TYPED_OWN = {
    "messages": chunked(
        b'event: message_start\ndata: {"type":"message_start","message":{"usage":'
        b'{"input_tokens":5,"output_tokens":0}}}\n\n',
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":'
        '{"type":"text_delta","text":"naïve 水"}}\n\n'.encode(),
        b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":1}}\n\n',
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    ),
    "responses": chunked(
        b'event: response.created\ndata: {"type":"response.created","response":{}}\n\n',
        'event: response.output_text.delta\ndata: {"delta":"naïve 水",'
        '"type":"response.output_text.delta"}\n\n'.encode(),
        b'event: response.completed\ndata: {"response":{"usage":{"input_tokens":5,'
        b'"output_tokens":1}},"type":"response.completed"}\n\n',
    ),
}
TYPED_CAPTURES = [(name, FIXTURES / f"sse_{name}.bin") for name in TYPED]


async def relayed_typed(name: str, capture: bytes, tmp_path: Path, seed: int) -> Answer:
    document = {"model": "demo", "stream": True, **TYPED[name]}
    async with scripted(capture, seed) as url, InProcess(base_config([url]), tmp_path) as gateway:
        answer = await ask(gateway.port, document, path=f"/v1/{name}")
        assert answer.status == 200
        if answer.complete:
            assert gateway.metric("headrace_tokens_total", "demo", "completion") > 0
            assert gateway.metric("headrace_tokens_total", "demo", "prompt") > 0
        return answer


@pytest.mark.parametrize("name", TYPED)
async def test_typed_streams_arrive_unchanged_or_cut(name: str, tmp_path: Path) -> None:
    whole = TYPED_OWN[name]
    for seed in range(2):
        answer = await relayed_typed(name, whole, tmp_path, seed)
        assert (answer.body, answer.complete) == (body_of(whole), True)
    events = [event + b"\n\n" for event in body_of(whole).split(b"\n\n") if event]
    for cut in (whole[: whole.rindex(b"event: ") + 30], chunked(*events[:-1])):
        answer = await relayed_typed(name, cut, tmp_path, 1)
        assert not answer.complete
        assert answer.body.rpartition(b"\n\nevent: ")[2].startswith(b"error\ndata: ")


@pytest.mark.skipif(not FIXTURES.exists(), reason="needs the captures in ../shared")
@pytest.mark.parametrize(("name", "path"), TYPED_CAPTURES)
async def test_captured_typed_streams_arrive_unchanged(
    name: str, path: Path, tmp_path: Path
) -> None:
    capture = path.read_bytes()
    answer = await relayed_typed(name, capture, tmp_path, 1)
    assert (answer.body, answer.complete) == (body_of(capture), True)


async def relayed(capture: bytes, tmp_path: Path, seed: int, *, usage: bool) -> tuple[bytes, bool]:
    async with scripted(capture, seed) as url, InProcess(base_config([url]), tmp_path) as gateway:
        options = {"stream_options": {"include_usage": True}} if usage else {}
        answer = await ask(gateway.port, chat(**options))
        assert answer.status == 200
        return answer.body, answer.complete


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("seed", range(3))
async def test_own_streams_arrive_unchanged(name: str, seed: int, tmp_path: Path) -> None:
    expected = body_of(OWN[name])
    assert await relayed(OWN[name], tmp_path, seed, usage=True) == (expected, True)
    stripped = without_usage_chunk(expected)
    assert await relayed(OWN[name], tmp_path, seed, usage=False) == (stripped, True)


@pytest.mark.skipif(not CAPTURES, reason="needs the captures in ../shared")
@pytest.mark.parametrize("path", CAPTURES, ids=lambda p: f"{p.parent.name}-{p.stem}")
async def test_captured_streams_arrive_unchanged(path: Path, tmp_path: Path) -> None:
    capture = path.read_bytes()
    expected = body_of(capture)
    for seed in range(2):
        assert await relayed(capture, tmp_path, seed, usage=True) == (expected, True)
        stripped = without_usage_chunk(expected)
        assert await relayed(capture, tmp_path, seed, usage=False) == (stripped, True)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
async def test_a_stream_cut_before_its_terminator_is_never_complete(
    share: float, tmp_path: Path
) -> None:
    """Cut anywhere behind the first event, on the wire and (cleanly) in the framing."""
    whole = OWN["plain"]
    cut = whole[: whole.index(DELTA) + len(DELTA) + int(share * len(DELTA))]
    body, complete = await relayed(cut, tmp_path, 1, usage=True)
    assert not complete
    assert b"[DONE]" not in body
    assert b'data: {"error":' in body
    body, complete = await relayed(chunked(DELTA, DELTA), tmp_path, 1, usage=True)
    assert not complete
    assert b'data: {"error":' in body


@pytest.mark.skipif(not CUT, reason="needs the captures in ../shared")
@pytest.mark.parametrize("path", CUT, ids=lambda p: p.stem)
async def test_abbreviated_captures_end_as_they_did(path: Path, tmp_path: Path) -> None:
    """Read as event text: what is behind the cut mark is the stream's real end."""
    events = [b"data: " + e.split(b"\n")[0] for e in path.read_bytes().split(b"data: ")[1:]]
    whole = [e + b"\n\n" for e in events if e.endswith((b"}", b"[DONE]"))]
    terminated = whole[-1] == DONE
    body, complete = await relayed(chunked(*whole), tmp_path, 1, usage=True)
    assert complete == terminated
    if terminated:
        assert body == b"".join(whole)
    else:
        assert body.startswith(b"".join(whole))
        assert b'"error"' in body.rsplit(b"data: ", 1)[1]


@pytest.mark.skipif(not FIXTURES.exists(), reason="needs the captures in ../shared")
async def test_a_captured_overload_inside_a_200_is_tried_elsewhere(tmp_path: Path) -> None:
    overload = (FIXTURES / "sse_overload_error_in_200.bin").read_bytes()
    capture = chunked(*[e + b"\n\n" for e in overload.split(b"\n\n") if e])
    good = OWN["plain"]
    async with (
        scripted(capture, 1) as bad,
        scripted(good, 2) as well,
        InProcess(base_config([bad, well]), tmp_path) as gateway,
    ):
        for number in range(4):
            answer = await ask(gateway.port, chat(f"question {number}"))
            assert (answer.body, answer.complete) == (body_of(good), True)
