"""The gateway before real vLLM replicas."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import openai
import pytest
from client import Answer, Client, ask, events
from running import Process, eventually, metric
from vllm_engine import (
    ENDLESS,
    KEEP_ALIVE_S,
    MAX_MODEL_LEN,
    MODEL,
    Engine,
    chat,
    configuration,
    idle,
    words,
)


async def direct(engine: Engine, document: dict[str, Any], **options: Any) -> Answer:
    headers = {"Content-Type": "application/json"}
    return await ask(engine.port, document, headers=headers, **options)


def client_of(gateway: Process) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key="none")


@pytest.mark.parametrize("stream", [True, False])
async def test_the_text_is_the_engines_own(
    gateway: Process, engines: list[Engine], stream: bool
) -> None:
    document = chat("What is a headrace?", stream=stream, max_tokens=24)
    through = await ask(gateway.port, document)
    assert through.complete
    assert through.text == (await direct(engines[0], document)).text != ""


async def test_completions_and_their_echo_of_tokens(
    gateway: Process, engines: list[Engine]
) -> None:
    document = {"model": MODEL, "prompt": "A headrace is", "max_tokens": 12, "temperature": 0}
    through = await ask(gateway.port, document, path="/v1/completions")
    assert through.text == (await direct(engines[0], document, path="/v1/completions")).text != ""


async def test_choices_logprobs_and_tools_come_through(gateway: Process) -> None:
    async with client_of(gateway) as client:
        whole = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Two answers."}],
            n=2,
            logprobs=True,
            top_logprobs=2,
            max_tokens=5,
        )
        assert [choice.index for choice in whole.choices] == [0, 1]
        assert whole.choices[0].logprobs is not None
        assert whole.choices[0].logprobs.content is not None
        assert len(whole.choices[0].logprobs.content) == 5
        tool: Any = {
            "type": "function",
            "function": {"name": "flow", "parameters": {"type": "object", "properties": {}}},
        }
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Call it."}],
            tools=[tool],
            stream=True,
            max_tokens=5,
        )
        assert [chunk async for chunk in stream]


async def logged(gateway: Process, names: list[str]) -> dict[str, dict[str, Any]]:
    """The lines of the access log by request."""

    async def records() -> dict[str, dict[str, Any]]:
        found = {record["request_id"]: record for record in gateway.records()}
        return found if found.keys() >= set(names) else {}

    found: dict[str, dict[str, Any]] = await eventually(records)
    return found


async def quiet(gateway: Process) -> None:
    """Until no KV events have come for a while: an engine sends its own within 50 ms."""
    name, before = "headrace_kv_event_batches_total", -1.0

    async def same() -> bool:
        nonlocal before
        last = before
        before = sum([await metric(gateway, name, replica=replica) for replica in ("r0", "r1")])
        await asyncio.sleep(0.5)
        return before == last

    await eventually(same)


async def test_prompts_are_counted_as_the_engine_counts_them(gateway: Process) -> None:
    rng = random.Random(3)
    wanted = []
    for number in range(40):
        text = words(rng.randrange(1, 60), number) + rng.choice(["", " é 水 🌊", "\n\n\t x"])
        messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
        if number % 3 == 0:
            messages.insert(0, {"role": "system", "content": "Be brief."})
        if number % 4 == 0:
            messages += [
                {"role": "assistant", "content": "Yes."},
                {"role": "user", "content": [{"type": "text", "text": "And then?"}]},
            ]
        document = {"model": MODEL, "messages": messages, "max_tokens": 1}
        answer = await ask(gateway.port, document)
        wanted.append((answer.headers["x-request-id"], answer.json()["usage"]["prompt_tokens"]))

    records = await logged(gateway, [name for name, _ in wanted])
    counted = [(name, records[name]["reserved_tokens"] - 1) for name, _ in wanted]
    assert counted == wanted


async def test_what_is_predicted_to_be_cached_is_what_the_engine_finds(
    gateway: Process, engines: list[Engine]
) -> None:
    """By the engines' own KV events."""

    async def exact() -> bool:
        found = [
            await metric(gateway, "headrace_replica_kv_state", replica=name, state="exact")
            for name in ("r0", "r1")
        ]
        return all(found)

    heads = [words(300, 1000 + number) for number in range(4)]
    for head in heads:
        await ask(gateway.port, chat(head, max_tokens=1, stream=False))
    await eventually(exact)
    await quiet(gateway)
    names = []
    for number in range(40):
        text = heads[number % 4] + words(number % 7 * 20, number)
        answer = await ask(gateway.port, chat(text, max_tokens=1, stream=False))
        names.append(answer.headers["x-request-id"])
    records = await logged(gateway, names)
    found = [
        (records[name]["predicted_cached_tokens"], records[name]["cached_tokens"]) for name in names
    ]
    assert sum(delivered for _, delivered in found) > 0
    good = [predicted <= delivered <= predicted + 64 for predicted, delivered in found]
    assert sum(good) >= 0.95 * len(good), found


async def test_a_prompt_that_is_too_long_is_refused_without_the_engine(gateway: Process) -> None:
    answer = await ask(gateway.port, chat(words(3 * MAX_MODEL_LEN, 1)))
    assert answer.status == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_ends_the_work(
    gateway: Process, engines: list[Engine], stream: bool
) -> None:
    client = await Client.open(gateway.port)
    client.send(chat("Go on.", stream=stream, **ENDLESS))

    async def running() -> bool:
        return any(engine.metric("vllm:num_requests_running") for engine in engines)

    await eventually(running)
    client.close()
    await idle(engines)

    async def none() -> bool:
        replicas = [
            await metric(gateway, "headrace_replica_inflight", replica=name)
            for name in ("r0", "r1")
        ]
        return await metric(gateway, "headrace_exchanges_in_flight") == sum(replicas) == 0

    await eventually(none)


async def test_an_overload_is_retried_or_refused_and_never_a_success_with_an_error_inside(
    model: Path, engines: list[Engine]
) -> None:
    with Process(configuration(engines[1:])) as gateway:
        question = chat("Quick.", max_tokens=60, ignore_eos=True)
        answers = await asyncio.gather(*[ask(gateway.port, question) for _ in range(40)])
    assert {answer.status for answer in answers} <= {200, 429, 503}
    served = [answer for answer in answers if answer.status == 200]
    refused = [answer for answer in answers if answer.status != 200]
    assert served
    assert refused
    for answer in served:
        assert answer.complete
        assert not any("error" in json.loads(data) for data in events(answer.body))
    assert all("retry-after" in answer.headers for answer in refused)


async def test_comments_of_a_silent_engine_reach_the_client(engines: list[Engine]) -> None:
    """A paused engine accepts, and says nothing but that it is alive."""
    upstream = {"timeouts": {"heartbeat_s": KEEP_ALIVE_S / 2}}
    engine = engines[0]
    with Process(configuration([engine], upstream=upstream)) as gateway:
        client = await Client.open(gateway.port)
        engine.post("/pause?mode=keep")
        try:
            client.send(chat("Anybody there?", max_tokens=5))
            assert (await client.head()).status == 200
            first = await client.chunk()
        finally:
            engine.post("/resume")
        rest = b""
        while chunk := await client.chunk():
            rest += chunk
        client.close()
    assert first is not None
    assert first.startswith(b": keep-alive")
    assert rest.endswith(b"data: [DONE]\n\n")
    assert b'"error"' not in rest
