"""The SDKs of OpenAI and Anthropic against the process, over TLS: the same as against the replica
itself."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import anthropic
import openai
import pytest
import pytest_asyncio
from running import Identity, Process

from loadtest.replica import FakeReplica

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUESTION = [{"role": "user", "content": "What is a headrace?"}]
NAMES = ["demo", "gpt-4o", "Qwen/Qwen3-8B"]
LIMITS = {
    "rules": [
        {"name": "few", "match": {"tenants": ["few"]}, "limit": 2},
        {"name": "fast", "match": {"tenants": ["fast"]}, "limit": 240, "burst": 1},
    ]
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(identity: Identity) -> AsyncIterator[SimpleNamespace]:
    """The gateway, its replica and the identity, for all tests of this module."""
    async with FakeReplica() as replica:
        document = identity.config([replica.url], limits=LIMITS)
        document["models"][0]["aliases"] = NAMES[1:]
        document["workers"] = 2
        with Process(document) as gateway:
            yield SimpleNamespace(gateway=gateway, replica=replica, identity=identity)


def options(house: SimpleNamespace, tenant: str, **claims: Any) -> dict[str, Any]:
    return {
        "base_url": f"https://localhost:{house.gateway.port}/v1",
        "api_key": house.identity.issuer.token(tenant, **claims),
        "max_retries": 0,
    }


def through(house: SimpleNamespace, tenant: str = "acme", **more: Any) -> openai.AsyncOpenAI:
    http_client = openai.DefaultAsyncHttpxClient(verify=house.identity.client_context())
    return openai.AsyncOpenAI(http_client=http_client, **{**options(house, tenant), **more})


def direct(house: SimpleNamespace) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{house.replica.url}/v1", api_key="any", max_retries=0)


async def chat_stream(client: openai.AsyncOpenAI, **fields: Any) -> str:
    stream = await client.chat.completions.create(
        model="demo", messages=QUESTION, max_tokens=24, stream=True, **fields
    )
    parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
    return "".join(parts)


async def chat_whole(client: openai.AsyncOpenAI, **fields: Any) -> str:
    answer = await client.chat.completions.create(
        model="demo", messages=QUESTION, max_tokens=24, **fields
    )
    assert answer.usage.completion_tokens == 24
    return answer.choices[0].message.content


async def completion_stream(client: openai.AsyncOpenAI) -> str:
    stream = await client.completions.create(
        model="demo", prompt="A headrace", max_tokens=24, stream=True
    )
    return "".join([chunk.choices[0].text async for chunk in stream])


async def completion_whole(client: openai.AsyncOpenAI) -> str:
    answer = await client.completions.create(model="demo", prompt="A headrace", max_tokens=24)
    return answer.choices[0].text


@pytest.mark.parametrize("call", [chat_stream, chat_whole, completion_stream, completion_whole])
async def test_the_text_is_the_same_as_direct(house: SimpleNamespace, call: Any) -> None:
    async with through(house) as ours, direct(house) as theirs:
        text = await call(ours)
        assert text == await call(theirs)
        assert len(text.split()) == 24


async def test_the_synchronous_client_gets_the_same(house: SimpleNamespace) -> None:
    def ask() -> tuple[str, str, list[str]]:
        http_client = openai.DefaultHttpxClient(verify=house.identity.client_context())
        with openai.OpenAI(http_client=http_client, **options(house, "acme")) as client:
            stream = client.chat.completions.create(
                model="gpt-4o", messages=QUESTION, max_tokens=24, stream=True
            )
            streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            whole = client.chat.completions.create(model="demo", messages=QUESTION, max_tokens=24)
            return streamed, whole.choices[0].message.content, [m.id for m in client.models.list()]

    async with direct(house) as theirs:
        expected = await chat_stream(theirs)
    assert await asyncio.to_thread(ask) == (expected, expected, NAMES)


async def test_models_are_those_that_the_token_allows(house: SimpleNamespace) -> None:
    async with through(house) as client:
        assert [model.id async for model in client.models.list()] == NAMES
        for name in NAMES:
            assert (await client.models.retrieve(name)).id == name
    async with through(house, **options(house, "acme", models=["gpt-4o"])) as client:
        assert [model.id async for model in client.models.list()] == ["gpt-4o"]
        with pytest.raises(openai.PermissionDeniedError):
            await chat_whole(client)


async def test_a_bad_token_is_an_authentication_error(house: SimpleNamespace) -> None:
    async with through(house, api_key="sk-nonsense") as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            await chat_stream(client)
    assert caught.value.response.headers["www-authenticate"] == "Bearer"
    assert caught.value.request_id


async def test_an_unknown_model_is_not_found(house: SimpleNamespace) -> None:
    async with through(house) as client:
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="gpt-9", messages=QUESTION)
    assert caught.value.code == "model_not_found"


async def test_too_many_requests_are_a_rate_limit_error_that_says_when(
    house: SimpleNamespace,
) -> None:
    async with through(house, "few") as client:
        await chat_whole(client)
        await chat_whole(client)
        with pytest.raises(openai.RateLimitError) as caught:
            await chat_whole(client)
    headers = caught.value.response.headers
    assert 25 <= int(headers["retry-after"]) <= 30  # two a minute
    assert 25_000 <= int(headers["retry-after-ms"]) <= 30_000
    assert headers["x-ratelimit-remaining-requests"] == "0"


async def test_a_client_that_retries_waits_as_it_is_told(house: SimpleNamespace) -> None:
    """One request every 250 ms: the SDK's own first wait would be half a second or longer."""
    async with through(house, "fast", max_retries=2) as client:
        await chat_whole(client)
        asked_at = time.monotonic()
        raw = await client.chat.completions.with_raw_response.create(
            model="demo", messages=QUESTION, max_tokens=2
        )
        waited_s = time.monotonic() - asked_at
    assert raw.retries_taken == 1
    assert waited_s > 0.1


BROKEN = ["kill_mid=3", "truncate=3", "garbage_mid=3", "no_done", "error_mid=3"]


@pytest.mark.parametrize("fault", BROKEN)
async def test_a_stream_that_breaks_raises(house: SimpleNamespace, fault: str) -> None:
    """Never an answer that looks complete and is not."""
    before = len(house.replica.requests)
    async with through(house) as client:
        # With usage asked for nothing is taken out of the stream, which is another way through it.
        usage = {"stream_options": {"include_usage": True}} if fault == "truncate=3" else {}
        with pytest.raises(openai.APIError):
            await chat_stream(client, user=f"fake:{fault}", **usage)
    assert len(house.replica.requests) == before + 1  # and nothing was tried again


async def test_a_replica_that_dies_under_a_stream_raises(house: SimpleNamespace) -> None:
    async with through(house) as client:
        stream = await client.chat.completions.create(
            model="demo", messages=QUESTION, stream=True, user="fake:exit_mid=3"
        )
        received: list[str] = []

        async def read() -> None:
            async for chunk in stream:
                received.append(chunk.choices[0].delta.content or "")

        with pytest.raises(openai.APIError):
            await read()
        assert len("".join(received).split()) == 3
        await house.replica.start_listening()
        assert await chat_whole(client)


async def test_responses_are_streamed_by_the_helper(house: SimpleNamespace) -> None:
    async with through(house) as client, direct(house) as theirs:
        texts = []
        for each in (client, theirs):
            async with each.responses.stream(
                model="demo", input="What is a headrace?", max_output_tokens=24
            ) as stream:
                kinds = [event.type async for event in stream]
                final = await stream.get_final_response()
            assert kinds[0] == "response.created"
            assert kinds[-1] == "response.completed"
            assert final.usage is not None
            assert final.usage.output_tokens == 24
            texts.append(final.output_text)
    assert texts[0] == texts[1]


async def test_a_response_is_retrieved_cancelled_and_gone_on_with(house: SimpleNamespace) -> None:
    async with through(house) as client:
        made = await client.responses.create(model="demo", input="Hello")
        assert (await client.responses.retrieve(made.id)).output_text == made.output_text
        assert (await client.responses.cancel(made.id)).status == "cancelled"
        more = await client.responses.create(
            model="demo", input="More", previous_response_id=made.id
        )
        assert more.id != made.id
    for _ in range(4):  # connections of their own, so that other workers are asked too
        async with through(house) as client:
            assert (await client.responses.retrieve(made.id)).id == made.id
    async with through(house, "beta") as other:
        with pytest.raises(openai.NotFoundError):
            await other.responses.retrieve(made.id)


async def test_embeddings_are_made(house: SimpleNamespace) -> None:
    async with through(house) as client:
        answer = await client.embeddings.create(
            model="demo", input=["one", "two"], encoding_format="float"
        )
    assert len(answer.data) == 2
    assert answer.usage.prompt_tokens > 0


@pytest.mark.parametrize("fault", BROKEN)
async def test_a_stream_of_responses_that_breaks_raises(house: SimpleNamespace, fault: str) -> None:
    async def read() -> None:
        async with through(house) as client:
            stream = await client.responses.create(
                model="demo", input="Hello", stream=True, user=f"fake:{fault}"
            )
            async for event in stream:
                if event.type == "response.failed":  # the API's own way, which is no exception
                    request, problem = stream.response.request, str(event.response.error)
                    raise openai.APIError(problem, request, body=None)

    with pytest.raises(openai.APIError):
        await read()


@pytest.mark.parametrize("fault", BROKEN)
async def test_the_helper_for_responses_raises_too(house: SimpleNamespace, fault: str) -> None:
    async def read() -> None:
        async with (
            through(house) as client,
            client.responses.stream(model="demo", input="Hello", user=f"fake:{fault}") as stream,
        ):
            await stream.get_final_response()

    # `response.failed`, which the replica itself sends, is no exception to it: it sees that there
    # was no `response.completed`.
    told_by_replica = fault.startswith("error_mid")
    with pytest.raises(RuntimeError if told_by_replica else openai.APIError):
        await read()


def claude(house: SimpleNamespace, tenant: str = "acme", **more: Any) -> anthropic.AsyncAnthropic:
    http_client = anthropic.DefaultAsyncHttpxClient(verify=house.identity.client_context())
    given = options(house, tenant)
    given["base_url"] = given["base_url"].removesuffix("/v1")
    return anthropic.AsyncAnthropic(http_client=http_client, **{**given, **more})


ASKED: dict[str, Any] = {"model": "demo", "messages": QUESTION, "max_tokens": 24}


async def test_messages_are_streamed_by_anthropics_helper(house: SimpleNamespace) -> None:
    async with claude(house) as client:
        async with client.messages.stream(**ASKED) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            final = await stream.get_final_message()
        whole = await client.messages.create(**ASKED)
        count = await client.messages.count_tokens(model="demo", messages=ASKED["messages"])
    assert len(text.split()) == 24
    assert final.content[0].text == whole.content[0].text == text
    assert final.stop_reason == "max_tokens"
    assert final.usage.output_tokens == 24
    cached = whole.usage.cache_read_input_tokens or 0
    assert count.input_tokens == whole.usage.input_tokens + cached


@pytest.mark.parametrize("fault", BROKEN)
async def test_a_message_that_breaks_raises(house: SimpleNamespace, fault: str) -> None:
    async def read() -> None:
        async with (
            claude(house) as client,
            client.messages.stream(**ASKED, extra_body={"user": f"fake:{fault}"}) as stream,
        ):
            await stream.get_final_message()

    with pytest.raises(anthropic.APIStatusError) as caught:
        await read()
    assert caught.value.body["type"] == "error"


async def test_refusals_are_the_exceptions_that_anthropics_sdk_has(house: SimpleNamespace) -> None:
    async with claude(house) as client:
        with pytest.raises(anthropic.NotFoundError) as unknown:
            await client.messages.create(**{**ASKED, "model": "gpt-9"})
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.create(**{**ASKED, "system": "word " * 33_000})
    assert unknown.value.body["error"]["type"] == "not_found_error"
    async with claude(house, api_key="sk-nonsense") as client:
        with pytest.raises(anthropic.AuthenticationError):
            await client.messages.create(**ASKED)
    async with claude(house, "few") as client:
        for _ in range(2):  # another test may have used some of them
            with contextlib.suppress(anthropic.RateLimitError):
                await client.messages.create(**ASKED)
        with pytest.raises(anthropic.RateLimitError):
            await client.messages.create(**ASKED)
