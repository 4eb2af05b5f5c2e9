"""Replicas that are no vLLM, and what the gateway makes of them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from client import ask, chat
from listening import Site
from running import InProcess, base_config, eventually

from loadtest.replica import FakeReplica, ReplicaOptions

FAST = {"health": {"interval_s": 0.05}, "metrics": {"interval_s": 0.5}}


def config(*replicas: tuple[str, str], **sections: Any) -> dict[str, Any]:
    """Of pairs of a URL and an engine."""
    document = base_config([url for url, _ in replicas], upstream=FAST, **sections)
    for entry, (_, engine) in zip(document["replicas"], replicas, strict=True):
        entry["engine"] = engine
    return document


async def test_sglang_is_read_in_its_own_words(tmp_path: Path) -> None:
    options = ReplicaOptions(engine="sglang", num_blocks=64)
    async with FakeReplica(options) as replica:
        document = config((replica.url, "sglang"))
        async with InProcess(document, tmp_path) as gateway:
            registry = gateway.worker._replicas.registry

            async def scraped() -> Any:
                return registry.load("r0")

            load = await eventually(scraped)
            assert (load.running, load.waiting, load.kv_tokens) == (0, 0, 64 * 16)
            answer = await ask(gateway.port, chat(max_tokens=3))
            assert answer.complete


async def test_sglang_takes_token_ids_in_its_own_field(tmp_path: Path) -> None:
    async with FakeReplica(ReplicaOptions(engine="sglang")) as replica:
        document = config((replica.url, "sglang"))
        document["upstream"] = {**FAST, "token_ids": "auto"}
        async with InProcess(document, tmp_path) as gateway:

            async def handed_over() -> bool:
                answer = await ask(gateway.port, chat("What is a headrace?", max_tokens=2))
                assert answer.complete
                return "input_ids" in replica.requests[-1].body

            await eventually(handed_over)
            sent = replica.requests[-1]
            assert len(sent.body["input_ids"]) == sent.prompt_tokens
            assert "kv_transfer_params" not in sent.body


async def test_metrics_of_another_engine_are_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with FakeReplica(ReplicaOptions(engine="sglang")) as replica:
        document = config((replica.url, "vllm"))
        async with InProcess(document, tmp_path):

            async def said() -> bool:
                return "give it `engine: sglang`" in caplog.text

            await eventually(said)


@pytest.mark.parametrize("stream", [True, False])
async def test_sglang_refuses_in_its_own_shape_and_another_is_asked(
    tmp_path: Path, stream: bool
) -> None:
    options = ReplicaOptions(engine="sglang", behaviour="status=503")
    async with FakeReplica(options) as busy, FakeReplica(ReplicaOptions(engine="sglang")) as other:
        document = config((busy.url, "sglang"), (other.url, "sglang"))
        async with InProcess(document, tmp_path) as gateway:
            for number in range(4):
                answer = await ask(gateway.port, chat(f"question {number}", stream=stream))
                assert answer.status == 200
        other.behaviour = "status=503"
        async with InProcess(document, tmp_path) as gateway:
            answer = await ask(gateway.port, chat(stream=stream))
            assert answer.status == 503
            error = orjson.loads(answer.body)["error"]
            assert "currently busy" in error["message"], "the engine's own words"


class Provider:
    """An OpenAI-compatible server that knows OpenAI's fields alone, and has nothing else."""

    def __init__(self) -> None:
        self.models = 200
        self.asked: list[tuple[str, str]] = []
        self.bodies: list[dict[str, Any]] = []
        self.site = Site(
            web.get("/v1/models", self._models),
            web.post("/v1/chat/completions", self._chat),
            web.post("/v1/responses", self._respond),
            web.get("/{anything:.*}", self._nothing),
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.site.port}"

    async def _models(self, request: web.Request) -> web.Response:
        self.asked.append((request.path, request.headers.get("authorization", "")))
        return web.json_response({"data": []}, status=self.models)

    async def _nothing(self, request: web.Request) -> web.Response:
        self.asked.append((request.path, request.headers.get("authorization", "")))
        return web.Response(status=404)

    async def _respond(self, request: web.Request) -> web.Response:
        self.bodies.append(orjson.loads(await request.read()))
        return web.json_response({"id": "resp_theirs", "usage": {"input_tokens": 1}})

    async def _chat(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        self.bodies.append(body)
        self.asked.append((request.path, request.headers.get("authorization", "")))
        known = {"model", "messages", "stream", "max_tokens", "stream_options", "temperature"}
        if unknown := set(body) - known:
            message = f"Unrecognized request argument supplied: {', '.join(unknown)}"
            return web.json_response({"error": {"message": message}}, status=400)
        choice = {"index": 0, "message": {"role": "assistant", "content": "Hello."}}
        details = {"cached_tokens": 2}
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": details}
        return web.json_response({"choices": [choice | {"finish_reason": "stop"}], "usage": usage})


async def test_a_provider_answers_when_no_replica_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVIDER_KEY", "sk-provider")
    monkeypatch.setenv("CACHE_SECRET", "s" * 32)
    provider = Provider()
    await provider.site.start()
    try:
        async with FakeReplica(ReplicaOptions(behaviour="status=503")) as replica:
            document = config(
                (replica.url, "vllm"),
                (provider.url, "openai"),
                routing={"secret": "env:CACHE_SECRET"},
            )
            document["replicas"][1] |= {"model": "elsewhere", "api_key": "env:PROVIDER_KEY"}
            document["models"][0]["fallback"] = ["elsewhere"]
            document["models"].append({"name": "elsewhere"})
            async with InProcess(document, tmp_path) as gateway:
                registry = gateway.worker._replicas.registry

                async def ready() -> bool:
                    return registry.ready() is None

                await eventually(ready)
                answer = await ask(gateway.port, chat(stream=False, max_tokens=5))
                assert (answer.status, orjson.loads(answer.body)["usage"]["prompt_tokens"]) == (
                    200,
                    5,
                )
                assert answer.headers["x-headrace-model"] == "elsewhere"
                (body,) = provider.bodies
                assert (body["model"], "cache_salt" in body) == ("elsewhere", False)
                replica.behaviour = ""
                answer = await ask(gateway.port, chat("again", stream=False))
                assert "x-headrace-model" not in answer.headers
                assert replica.requests[-1].body["cache_salt"]
        assert {path for path, _ in provider.asked} == {"/v1/models", "/v1/chat/completions"}
        assert {key for _, key in provider.asked} == {"Bearer sk-provider"}
    finally:
        await provider.site.stop()


async def test_a_provider_names_its_responses_itself(tmp_path: Path) -> None:
    """It would refuse the field that the gateway names them by; so they cannot be asked for."""
    provider = Provider()
    await provider.site.start()
    try:
        document = config((provider.url, "openai"))
        async with InProcess(document, tmp_path) as gateway:
            body = {"model": "demo", "input": "Hello!"}
            answer = await ask(gateway.port, body, path="/v1/responses")
            assert (answer.status, answer.json()["id"]) == (200, "resp_theirs")
            assert provider.bodies == [body]
            again = await ask(gateway.port, b"", method="GET", path="/v1/responses/resp_theirs")
            assert again.status == 404
    finally:
        await provider.site.stop()


@pytest.mark.parametrize(("status", "ready"), [(429, True), (404, True), (401, False)])
async def test_health_of_a_provider(tmp_path: Path, status: int, ready: bool) -> None:
    provider = Provider()
    provider.models = status
    await provider.site.start()
    try:
        document = config((provider.url, "openai"))
        document["upstream"] = {"health": {"unhealthy_after": 1}}
        async with InProcess(document, tmp_path) as gateway:
            registry = gateway.worker._replicas.registry

            async def judged() -> bool:
                return registry.member("r0").probed_once

            await eventually(judged)
            assert (registry.ready() is None) == ready
    finally:
        await provider.site.stop()
