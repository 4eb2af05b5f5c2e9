"""The process over HTTP/2, spoken to by the clients that people use."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx2
import openai
import pytest
import pytest_asyncio
from client import chat
from running import Identity, Process

from loadtest.replica import FakeReplica

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUESTION = [{"role": "user", "content": "What is a headrace?"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["nghttp2", "h2"])
async def house(
    identity: Identity, request: pytest.FixtureRequest
) -> AsyncIterator[SimpleNamespace]:
    async with FakeReplica() as replica:
        document = identity.config([replica.url], workers=1)
        document["listen"]["http2_engine"] = request.param
        with Process(document) as gateway:
            yield SimpleNamespace(gateway=gateway, replica=replica, identity=identity)


def sdk(house: SimpleNamespace, *, http2: bool = True) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"https://localhost:{house.gateway.port}/v1",
        api_key=house.identity.issuer.token("acme"),
        max_retries=0,
        http_client=openai.DefaultAsyncHttpxClient(
            verify=house.identity.client_context(), http2=http2
        ),
    )


async def streamed(client: openai.AsyncOpenAI, **fields: Any) -> tuple[str, str]:
    """The text, and the version of HTTP that brought it."""
    stream = await client.chat.completions.create(
        model="demo", messages=QUESTION, max_tokens=24, stream=True, **fields
    )
    parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
    return "".join(parts), stream.response.http_version


async def test_the_sdk_streams_over_http_2(house: SimpleNamespace) -> None:
    async with sdk(house) as modern, sdk(house, http2=False) as old:
        text, version = await streamed(modern)
        assert (text, "HTTP/1.1") == await streamed(old)
    assert version == "HTTP/2"
    assert len(text.split()) == 24


async def test_fifty_streams_of_one_client(house: SimpleNamespace) -> None:
    async with sdk(house) as client:
        texts = await asyncio.gather(*(streamed(client) for _ in range(50)))
    assert len(set(texts)) == 1
    assert texts[0][1] == "HTTP/2"


async def test_the_sdk_takes_a_cut_stream_for_a_failure(house: SimpleNamespace) -> None:
    async with sdk(house) as client:
        with pytest.raises(openai.APIError):
            await streamed(client, user="fake:kill_mid")
        assert len((await streamed(client))[0].split()) == 24


async def test_a_stream_that_is_given_up_ends_alone(house: SimpleNamespace) -> None:
    async with sdk(house) as client:
        other = asyncio.ensure_future(streamed(client, user="fake:token_ms=10"))
        stream = await client.chat.completions.create(
            model="demo", messages=QUESTION, max_tokens=2000, stream=True, user="fake:token_ms=10"
        )
        await anext(aiter(stream))
        await stream.close()
        assert len((await other)[0].split()) == 24
    [given_up] = [r for r in house.replica.requests if r.body.get("max_tokens") == 2000]
    async with asyncio.timeout(20):
        while given_up.outcome != "aborted":
            await asyncio.sleep(0.01)


async def test_errors_have_their_status(house: SimpleNamespace) -> None:
    async with sdk(house) as client:
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="no such", messages=[])
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model="demo", messages="x" * 100)
        with pytest.raises(openai.APIStatusError) as large:
            await client.chat.completions.create(
                model="demo", messages=[{"role": "user", "content": "x" * 5_000_000}]
            )
        assert large.value.status_code == 413
        assert len((await streamed(client))[0].split()) == 24


async def test_httpx_reads_whole_answers_and_heads(house: SimpleNamespace) -> None:
    base = f"https://localhost:{house.gateway.port}"
    context = house.identity.client_context()
    token = house.identity.issuer.token("acme")
    async with httpx2.AsyncClient(verify=context, http2=True, base_url=base) as client:
        client.headers["authorization"] = f"Bearer {token}"
        whole = await client.post("/v1/chat/completions", json=chat(stream=False, max_tokens=5))
        assert (whole.http_version, whole.status_code) == ("HTTP/2", 200)
        assert whole.json()["usage"]["completion_tokens"] == 5
        head = await client.head("/healthz")
        assert (head.status_code, head.content) == (200, b"")


async def test_a_drained_process_finishes_what_it_streams(house: SimpleNamespace) -> None:
    """The last test of the module: the process is gone after it."""
    async with sdk(house) as client:
        stream = await client.chat.completions.create(
            model="demo", messages=QUESTION, max_tokens=24, stream=True, user="fake:token_ms=30"
        )
        chunks = aiter(stream)
        parts = [(await anext(chunks)).choices[0].delta.content or ""]
        house.gateway.signal(signal.SIGTERM)
        parts += [chunk.choices[0].delta.content or "" async for chunk in chunks]
    assert len("".join(parts).split()) == 24
    assert await asyncio.to_thread(house.gateway.ended) == 0
