from __future__ import annotations

from typing import Any

import orjson
import pytest
from fakes import DONE, EVENT, FakeExchange, lost, stream, whole
from pipeline_setting import CHAT, Setting, error_of

from core.errors import BadRequest, UpstreamReset, UpstreamTimeout, UpstreamUnreachable
from core.principal import Principal
from core.prompt import Prompt
from routing.config import Canary, ModelConfig

GOOD = stream(EVENT, DONE)
FAILED = UpstreamUnreachable("Away.")
N = ModelConfig(name="n")


def told(exchange: FakeExchange) -> dict[bytes, bytes]:
    return {name: value for name, value in exchange.headers if name.startswith(b"x-headrace")}


def models(**fields: Any) -> list[ModelConfig]:
    return [ModelConfig(name="m", aliases=("alias",), **fields), N, ModelConfig(name="o")]


async def test_nothing_is_said_where_there_is_nothing_to_say() -> None:
    exchange = await Setting(GOOD, models=models(fallback=("n",))).handle()
    assert exchange.status == 200
    assert told(exchange) == {}


async def test_a_canary_answers_and_says_so() -> None:
    s = Setting(GOOD, models=models(canaries=(Canary(to="n", percent=100),)))
    exchange = await s.handle()
    assert told(exchange) == {b"x-headrace-model": b"n"}
    assert b'"model":"n"' in s.pool.connections[0].sent[0][2]
    assert s.limiter.asked[0]["model"] == "n"
    assert (s.record.model, s.record.asked_model) == ("n", "m")


async def test_when_all_replicas_fail_another_model_answers() -> None:
    s = Setting(FAILED, FAILED, GOOD, models=models(fallback=("n",)))
    exchange = await s.handle()
    assert exchange.ended == "finished"
    assert told(exchange) == {b"x-headrace-model": b"n", b"x-headrace-fallback": b"m"}
    assert (s.record.model, s.record.asked_model, s.record.reason) == ("n", "m", "ok")
    first, second = s.limiter.reservations
    assert first.abandoned
    assert second.settled is not None
    assert [asked["model"] for asked in s.limiter.asked] == ["m", "n"]


async def test_the_chain_ends_with_the_first_failure() -> None:
    s = Setting(*[FAILED] * 6, models=models(fallback=("n", "o")))
    exchange = await s.handle()
    assert (exchange.status, error_of(exchange)["message"]) == (503, "Away.")
    assert [asked["model"] for asked in s.limiter.asked] == ["m", "n", "o"]
    assert all(reservation.abandoned for reservation in s.limiter.reservations)


async def test_another_model_is_not_told_what_its_replicas_do_not_know() -> None:
    failing = whole(503, b"{}")
    s = Setting(
        failing,
        failing,
        GOOD,
        models=models(fallback=("n",)),
        principal=Principal("acme", priority=3),
        prioritized=frozenset({"m"}),
        elsewhere=frozenset({"n"}),
    )
    assert (await s.handle()).status == 200
    sent = [orjson.loads(c.sent[0][2]) for c in s.pool.connections if c.sent]
    assert [body["model"] for body in sent] == ["m", "m", "n"]
    assert ["cache_salt" in body for body in sent] == [True, True, False]
    assert [body.get("priority") for body in sent] == [3, 3, None]


async def test_what_was_begun_is_not_begun_again() -> None:
    reset = UpstreamReset("Gone.", reused=False, answered=True)
    s = Setting(lost(reset, EVENT), models=models(fallback=("n",)))
    exchange = await s.handle()
    assert exchange.ended == "aborted"
    assert len(s.limiter.asked) == 1


async def test_a_replica_that_may_still_work_is_not_given_up() -> None:
    silent = UpstreamTimeout("Late.", phase="first_token")
    s = Setting(lost(silent), models=models(fallback=("n",)))
    assert (await s.handle()).status == 504
    assert len(s.limiter.asked) == 1


async def test_what_is_wrong_with_the_request_is_wrong_everywhere() -> None:
    s = Setting(whole(400, b'{"error":{"message":"No."}}'), models=models(fallback=("n",)))
    assert (await s.handle({**CHAT, "stream": False})).status == 400
    assert len(s.limiter.asked) == 1


class ShortPrompter:
    """Too long for `m`, as for no other."""

    async def chat(self, model: str, doc: dict[str, Any], salt: str) -> Prompt:
        return Prompt(model, 7, 7, True, (), 64)

    def check_length(self, model: str, prompt: Prompt, max_tokens: int | None) -> None:
        if model == "m":
            raise BadRequest("Too long.", code="context_length_exceeded")


@pytest.mark.parametrize(("fallback", "status"), [(("n",), 200), ((), 400)])
async def test_a_prompt_too_long_for_one_goes_to_another(
    fallback: tuple[str, ...], status: int
) -> None:
    s = Setting(GOOD, models=models(fallback=fallback, canaries=(Canary(to="n", header="x-y"),)))
    object.__setattr__(s.pipeline._services, "prompter", ShortPrompter())
    exchange = await s.handle()
    assert exchange.status == status


async def test_priority_goes_by_header_where_the_body_has_no_place_for_it() -> None:
    s = Setting(
        whole(200, b'{"usage":{"input_tokens":7,"output_tokens":1}}'),
        principal=Principal("acme", priority=3),
        prioritized=frozenset({"m"}),
    )
    document = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    exchange = await s.handle(document, path="/v1/messages")
    assert exchange.status == 200
    assert b"priority" not in s.pool.connections[0].sent[0][2]


async def test_what_is_made_in_the_background_is_charged_as_reserved() -> None:
    s = Setting(whole(200, b'{"id":"resp_1","status":"queued","usage":null}'))
    document = {"model": "m", "input": "hi", "background": True, "max_output_tokens": 20}
    await s.handle(document, path="/v1/responses")
    [reservation] = s.limiter.reservations
    assert reservation.settled == (7, 0, reservation.reserved_tokens - 7)
    assert s.record.tokens_estimated


async def test_a_large_body_is_read_beside_the_loop() -> None:
    s = Setting(whole(200, b'{"usage":{"input_tokens":7,"output_tokens":1}}'))
    message = {"role": "user", "content": [{"type": "text", "text": "hi " * 100}] * 500}
    document = {"model": "m", "max_tokens": 5, "messages": [message]}
    assert (await s.handle(document, path="/v1/messages")).status == 200
    broken = Setting()
    exchange = await broken.handle({**document, "tools": ["look"]}, path="/v1/messages")
    assert (exchange.status, b"a tool must be an object" in exchange.body) == (400, True)


class NamingPrompter:
    """Its prompts are as long as its call's name."""

    async def chat(self, model: str, doc: dict[str, Any], salt: str) -> Prompt:
        return Prompt(model, len("chat"), 4, True, (), 64)

    async def completion(self, model: str, doc: dict[str, Any], salt: str) -> Prompt:
        return Prompt(model, len("completion"), 10, True, (), 64)

    def check_length(self, model: str, prompt: Prompt, max_tokens: int | None) -> None:
        pass


@pytest.mark.parametrize(
    ("path", "fields", "length"),
    [
        ("/v1/completions", {"prompt": "a", "messages": []}, 10),
        ("/v1/embeddings", {"input": "a"}, 10),
        ("/v1/embeddings", {"messages": []}, 4),
        ("/v1/messages", {"messages": []}, 4),
        ("/tokenize", {"messages": []}, 0),
        ("/tokenize", {"prompt": "a"}, 0),
    ],
)
async def test_who_makes_the_prompt(path: str, fields: dict[str, Any], length: int) -> None:
    s = Setting(whole(200, b"{}"))
    object.__setattr__(s.pipeline._services, "prompter", NamingPrompter())
    await s.handle({"model": "m", **fields}, path=path)
    assert s.limiter.asked[0]["prompt_tokens"] == length
