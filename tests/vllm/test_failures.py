"""What clients see when a real vLLM ends under their streams."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import openai
import pytest
from client import Client
from running import Process, eventually, metric
from vllm_engine import ENDLESS, Engine, ask_chat, chat, configuration, words

QUESTION: list[Any] = [{"role": "user", "content": "What is a headrace?"}]


class Stream:
    """An answer that is being read: `body` so far; `ended` when the connection has."""

    def __init__(self, client: Client) -> None:
        self.body = b""
        self.ended = False
        self._client = client
        self._task = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while not self.ended:
            data = await self._client.reader.read(65536)
            self.body += data
            self.ended = not data

    @property
    def failed(self) -> bool:
        return self.ended and b'"error"' in self.body and b"[DONE]" not in self.body

    @property
    def aborted(self) -> bool:
        """Ended by the engine, in its own words."""
        return b'"finish_reason":"abort"' in self.body and b"[DONE]" in self.body

    async def close(self) -> None:
        self._client.close()
        self._task.cancel()
        await asyncio.wait([self._task])


class Streams:
    """Streams through `gateway`, opened until each replica has two of them."""

    def __init__(self, gateway: Process, names: tuple[str, ...], **fields: Any) -> None:
        self._gateway = gateway
        self._names = names
        self._fields = fields
        self.open: list[Stream] = []

    async def __aenter__(self) -> list[Stream]:
        while min(await self._counts()) < 2:
            assert len(self.open) < 40, "the gateway has chosen one replica alone, 40 times"
            client = await Client.open(self._gateway.port)
            client.send(chat(words(80, len(self.open)), **self._fields))
            await client.reader.readuntil(b"data: ")
            self.open.append(Stream(client))
        return self.open

    async def __aexit__(self, *_: object) -> None:
        for stream in self.open:
            await stream.close()

    async def _counts(self) -> list[float]:
        """By replica, once the gauges tell of every stream: they are brought up to date once a
        second."""

        async def counts() -> list[float]:
            name = "headrace_replica_inflight"
            found = [await metric(self._gateway, name, replica=one) for one in self._names]
            return found if sum(found) == len(self.open) else []

        found: list[float] = await eventually(counts)
        return found


async def serves(gateway: Process) -> None:
    for number in range(10):
        answer = await ask_chat(gateway.port, f"After {number}.", max_tokens=3)
        assert (answer.status, answer.complete) == (200, True), answer


def patient(**timeouts: float) -> dict[str, Any]:
    """A replica that is silent is not given up for that."""
    return {"timeouts": {"idle_s": 600, **timeouts}}


async def test_an_engine_that_is_killed_fails_its_streams_alone(
    engines: list[Engine], victim: Engine
) -> None:
    pair = [engines[0], victim]
    with Process(configuration(pair, upstream=patient())) as gateway:
        async with Streams(gateway, ("r0", "r1"), **ENDLESS) as streams:
            of_victim = await metric(gateway, "headrace_replica_inflight", replica="r1")
            victim.kill()

            async def all_failed() -> bool:
                return sum(stream.failed for stream in streams) == of_victim

            await eventually(all_failed, 120)
            others = [stream for stream in streams if not stream.failed]
            before = [len(stream.body) for stream in others]

            async def all_go_on() -> bool:
                return all(len(s.body) > size + 100 for s, size in zip(others, before, strict=True))

            await eventually(all_go_on, 120)
            assert not any(stream.ended or b'"error"' in stream.body for stream in others)
            await serves(gateway)
        victim.start()
        await asyncio.to_thread(victim.wait_ready)

        async def back() -> bool:
            return await metric(gateway, "headrace_replica_healthy", replica="r1") == 1

        await eventually(back, 120)
        async with Streams(gateway, ("r0", "r1"), **ENDLESS) as streams:
            assert not any(stream.ended for stream in streams)


async def test_a_server_that_is_told_to_end_leaves_no_stream_behind(
    engines: list[Engine], victim: Engine
) -> None:
    """SIGTERM by default: the engine is gone at once. A stream ends as aborted, or nothing comes of
    it any more but keep-alive comments, if they do."""
    pair = [engines[0], victim]
    with Process(configuration(pair, upstream=patient())) as gateway:
        async with Streams(gateway, ("r0", "r1"), **ENDLESS) as streams:
            of_victim = await metric(gateway, "headrace_replica_inflight", replica="r1")
            victim.terminate()

            async def all_over() -> bool:
                return sum(stream.failed or stream.aborted for stream in streams) == of_victim

            await eventually(all_over, 120)
            await serves(gateway)
            assert sum(stream.ended for stream in streams) <= of_victim


@pytest.mark.parametrize("victim", [("--shutdown-timeout", "600")], indirect=True)
async def test_a_server_that_drains_ends_its_streams_well_and_gets_no_more(
    engines: list[Engine], victim: Engine
) -> None:
    pair = [engines[0], victim]
    fields = {"max_tokens": 4000, "ignore_eos": True}  # some 20 s, if the machine is idle
    with Process(configuration(pair, upstream=patient())) as gateway:
        async with Streams(gateway, ("r0", "r1"), **fields) as streams:
            victim.terminate()
            await serves(gateway)

            async def all_ended() -> bool:
                return all(b"[DONE]" in stream.body for stream in streams)

            await eventually(all_ended, 500)
            assert not any(b'"error"' in stream.body for stream in streams)


Read = Callable[[openai.AsyncOpenAI, anthropic.AsyncAnthropic, asyncio.Event], Awaitable[None]]


async def read_chat(
    client: openai.AsyncOpenAI, _: anthropic.AsyncAnthropic, begun: asyncio.Event
) -> None:
    more: Any = {"ignore_eos": True}
    async for chunk in await client.chat.completions.create(
        model="tiny", messages=QUESTION, stream=True, max_tokens=7000, extra_body=more
    ):
        if chunk.choices and chunk.choices[0].delta.content:
            begun.set()


async def read_completion(
    client: openai.AsyncOpenAI, _: anthropic.AsyncAnthropic, begun: asyncio.Event
) -> None:
    more: Any = {"ignore_eos": True}
    async for _chunk in await client.completions.create(
        model="tiny", prompt="A headrace", stream=True, max_tokens=7000, extra_body=more
    ):
        begun.set()


async def read_response(
    client: openai.AsyncOpenAI, _: anthropic.AsyncAnthropic, begun: asyncio.Event
) -> None:
    async with client.responses.stream(
        model="tiny", input="Hello", max_output_tokens=7000, extra_body={"ignore_eos": True}
    ) as stream:
        async for event in stream:
            if event.type.endswith("delta"):
                begun.set()
        await stream.get_final_response()


async def read_message(
    _: openai.AsyncOpenAI, client: anthropic.AsyncAnthropic, begun: asyncio.Event
) -> None:
    async with client.messages.stream(
        model="tiny", messages=QUESTION, max_tokens=7000, extra_body={"ignore_eos": True}
    ) as stream:
        async for text in stream.text_stream:
            if text:
                begun.set()
        await stream.get_final_message()


READERS: dict[str, Read] = {
    "chat": read_chat,
    "completion": read_completion,
    "response": read_response,
    "message": read_message,
}


@pytest.mark.parametrize("whole", [True, False])
async def test_the_sdks_raise_their_own_exceptions(victim: Engine, whole: bool) -> None:
    """`whole`: the server dies; otherwise its engine alone, and the server tells of it."""
    with Process(configuration([victim], upstream=patient())) as gateway:
        url = f"http://127.0.0.1:{gateway.port}"
        async with (
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as ours,
            anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as claude,
        ):
            begun = {name: asyncio.Event() for name in READERS}
            tasks = {
                name: asyncio.ensure_future(read(ours, claude, begun[name]))
                for name, read in READERS.items()
            }
            for event in begun.values():
                await asyncio.wait_for(event.wait(), 60)
            assert not any(task.done() for task in tasks.values())
            victim.kill() if whole else victim.kill_core()
            await asyncio.wait(tasks.values(), timeout=60)
    raised = {name: task.exception() for name, task in tasks.items()}
    message = raised.pop("message")
    assert isinstance(message, anthropic.APIStatusError), message
    assert all(isinstance(error, openai.APIError) for error in raised.values()), raised
