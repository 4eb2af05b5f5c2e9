"""The SDKs of OpenAI and Anthropic before the gateway and a real vLLM: as before the vLLM alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest
from running import Process
from vllm_engine import MODEL, Engine

QUESTION: list[Any] = [{"role": "user", "content": "What is a headrace?"}]
SAME: dict[str, Any] = {"temperature": 0, "max_tokens": 16}
CLAUDES: dict[str, Any] = {"extra_body": {"temperature": 0}, "max_tokens": 16}
TOOL: dict[str, Any] = {
    "name": "flow",
    "description": "How much water flows",
    "parameters": {"type": "object", "properties": {"deep": {"type": "boolean"}}},
}
Found = list[Any]


def openai_at(port: int) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=120
    )


def anthropic_at(port: int) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(
        base_url=f"http://127.0.0.1:{port}", api_key="none", max_retries=0, timeout=120
    )


def kinds(types: list[str]) -> Found:
    """Without repetitions: how many tokens are in an event is a matter of time."""
    return [kind for kind, _ in itertools.groupby(types)]


async def chat_events(port: int) -> Found:
    async with (
        openai_at(port) as client,
        client.chat.completions.stream(model=MODEL, messages=QUESTION, **SAME) as stream,
    ):
        types = [event.type async for event in stream if event.type != "chunk"]
        [choice] = stream.current_completion_snapshot.choices
        return [*kinds(types), choice.message.content, choice.finish_reason]


async def chat_chunks_with_usage(port: int) -> Found:
    async with openai_at(port) as client:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            stream=True,
            stream_options={"include_usage": True},
            **SAME,
        )
        chunks = [chunk async for chunk in stream]
    usage = chunks[-1].usage
    assert usage is not None
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    return [text, usage.prompt_tokens, usage.completion_tokens]


async def two_choices_with_logprobs(port: int) -> Found:
    async with openai_at(port) as client:
        whole = await client.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            n=2,
            logprobs=True,
            top_logprobs=2,
            max_tokens=5,
            extra_body={"ignore_eos": True},
        )
    found: Found = []
    for choice in whole.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        found += [choice.index, [len(one.top_logprobs) for one in choice.logprobs.content]]
    return found


async def required_tool(port: int) -> Found:
    """vLLM makes such calls by a grammar, so that even a model of made-up weights has to."""
    tools: Any = [{"type": "function", "function": TOOL}]
    async with (
        openai_at(port) as client,
        client.chat.completions.stream(
            model=MODEL,
            messages=QUESTION,
            tools=tools,
            tool_choice="required",
            temperature=0,
            max_tokens=200,
        ) as stream,
    ):
        types = [event.type async for event in stream if event.type != "chunk"]
        [choice] = stream.current_completion_snapshot.choices
        calls = choice.message.tool_calls or []
        assert calls
        return [*kinds(types), [(call.function.name, call.function.arguments) for call in calls]]


async def completion(port: int) -> Found:
    async with openai_at(port) as client:
        stream = await client.completions.create(
            model=MODEL, prompt="A headrace", stream=True, **SAME
        )
        return ["".join([chunk.choices[0].text async for chunk in stream])]


async def response_events(port: int) -> Found:
    async with (
        openai_at(port) as client,
        client.responses.stream(
            model=MODEL, input="What is a headrace?", temperature=0, max_output_tokens=16
        ) as stream,
    ):
        types = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert final.usage is not None
    return [*kinds(types), final.output_text, final.usage.output_tokens]


async def message_events(port: int) -> Found:
    async with (
        anthropic_at(port) as client,
        client.messages.stream(model=MODEL, messages=QUESTION, **CLAUDES) as stream,
    ):
        types = [event.type async for event in stream if event.type != "text"]
        final = await stream.get_final_message()
    return [
        *kinds(types),
        final.stop_reason,
        final.usage.output_tokens,
        final.content[0].model_dump(),
    ]


async def whole_message(port: int) -> Found:
    async with anthropic_at(port) as client:
        message = await client.messages.create(model=MODEL, messages=QUESTION, **CLAUDES)
        count = await client.messages.count_tokens(model=MODEL, messages=QUESTION)
    return [message.content[0].model_dump(), message.stop_reason, count.input_tokens]


CALLS = [
    chat_events,
    chat_chunks_with_usage,
    two_choices_with_logprobs,
    required_tool,
    completion,
    response_events,
    message_events,
    whole_message,
]


@pytest.mark.parametrize("call", CALLS)
async def test_an_sdk_finds_what_it_finds_without_the_gateway(
    gateway: Process, engines: list[Engine], call: Callable[[int], Any]
) -> None:
    through = await call(gateway.port)
    assert through == await call(engines[0].port)
    assert through


async def test_refusals_are_the_sdks_own_exceptions(gateway: Process) -> None:
    long: list[Any] = [{"role": "user", "content": "river " * 10_000}]
    async with openai_at(gateway.port) as client:
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="other", messages=QUESTION)
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model=MODEL, messages=long, stream=True)
        with pytest.raises(openai.BadRequestError):  # the engine's own word
            await client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=-1)
    async with anthropic_at(gateway.port) as claude:
        with pytest.raises(anthropic.NotFoundError):
            await claude.messages.create(model="other", messages=QUESTION, max_tokens=1)
        with pytest.raises(anthropic.BadRequestError):
            await claude.messages.create(model=MODEL, messages=long, max_tokens=1)
