from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from fakes import (
    DONE,
    EVENT,
    USAGE_EVENT,
    FakeExchange,
    FakeUpstream,
    request,
    stream,
    whole,
)
from pipeline_setting import CHAT, Setting, error_of

from core.errors import RateLimited, Unauthenticated, Unavailable
from core.principal import Principal
from proxy.body_rules import BodyRules
from proxy.request_config import RequestsConfig
from routing.config import ModelConfig


async def test_one_streamed_chat_from_end_to_end() -> None:
    s = Setting(stream(EVENT, EVENT, USAGE_EVENT, DONE))
    exchange = await s.handle()
    assert (exchange.status, exchange.body) == (200, EVENT + EVENT + DONE)
    headers = dict(exchange.headers)
    assert headers[b"x-request-id"] == exchange.id.encode()
    assert headers[b"x-ratelimit-limit-requests"] == b"10"
    assert headers[b"cache-control"] == b"no-store"
    method, path, body = s.pool.connections[0].sent[0]
    sent = orjson.loads(body)
    assert (method, path) == (b"POST", b"/v1/chat/completions")
    assert sent["model"] == "m"
    assert sent["stream_options"] == {"include_usage": True}
    assert len(sent["cache_salt"]) == 32
    assert s.prompter.tokenized == 1
    assert s.limiter.asked == [
        {
            "tenant": "acme",
            "tier": "gold",
            "model": "m",
            "prompt_tokens": 7,
            "max_output_tokens": None,
            "route": "/v1/chat/completions",
            "address": "127.0.0.1",
        }
    ]
    assert s.limiter.reservations[0].settled == (7, 4, 3)
    record = s.record
    assert (record.status, record.reason, record.tenant, record.model) == (200, "ok", "acme", "m")
    assert (record.prompt_tokens, record.cached_tokens, record.completion_tokens) == (7, 4, 3)
    assert (record.reserved_tokens, record.settled_tokens) == (50, 10)
    assert record.cost_units == 3.5
    assert record.tokens_estimated is None
    assert record.bytes_sent == len(exchange.body)


async def test_usage_that_the_client_asked_for_stays() -> None:
    s = Setting(stream(EVENT, USAGE_EVENT, DONE))
    exchange = await s.handle({**CHAT, "stream_options": {"include_usage": True}})
    assert exchange.body == EVENT + USAGE_EVENT + DONE


async def test_an_answer_in_one_piece_is_accounted_too() -> None:
    body = b'{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}'
    s = Setting(whole(200, body))
    exchange = await s.handle({**CHAT, "stream": False})
    assert exchange.body == body
    assert s.limiter.reservations[0].settled == (9, 0, 4)
    assert b"stream_options" not in s.pool.connections[0].sent[0][2]


async def test_tenants_never_share_a_cache_salt() -> None:
    salts = set()
    for tenant in ("acme", "globex"):
        s = Setting(stream(EVENT, DONE), principal=Principal(tenant))
        await s.handle()
        salts.add(orjson.loads(s.pool.connections[0].sent[0][2])["cache_salt"])
    assert len(salts) == 2


async def test_rules_bound_what_is_asked_reserved_and_sent() -> None:
    rules = BodyRules(RequestsConfig(max_output_tokens=60), [ModelConfig(name="m")])
    s = Setting(stream(EVENT, DONE), body_rules=rules)
    await s.handle({**CHAT, "n": 3})
    assert orjson.loads(s.pool.connections[0].sent[0][2])["max_tokens"] == 20
    assert s.limiter.asked[0]["max_output_tokens"] == 60
    s = Setting(body_rules=rules)
    exchange = await s.handle({**CHAT, "n": 3, "max_tokens": 21})
    assert exchange.status == 400
    assert error_of(exchange)["param"] == "max_tokens"
    assert s.limiter.asked == []


@pytest.mark.parametrize(
    ("priority", "prioritized", "sent"),
    [(5, {"m"}, 5), (5, {"other"}, None), (5, set(), None), (0, {"m"}, None)],
)
async def test_priority_goes_to_those_alone_that_take_it(
    priority: int, prioritized: set[str], sent: int | None
) -> None:
    caller = Principal("acme", priority=priority)
    s = Setting(stream(EVENT, DONE), principal=caller, prioritized=frozenset(prioritized))
    await s.handle()
    assert orjson.loads(s.pool.connections[0].sent[0][2]).get("priority") == sent


@pytest.mark.parametrize(
    ("document", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        ({**CHAT, "model": "nope"}, 404, "model_not_found"),
        ({**CHAT, "chat_template": "{{ 1 }}"}, 400, "invalid_request"),
    ],
)
async def test_bad_requests_borrow_nothing(document: Any, status: int, code: str) -> None:
    s = Setting()
    exchange = await s.handle(document)
    assert exchange.status == status
    assert error_of(exchange)["code"] == code
    assert s.limiter.reservations == []
    assert s.record.reason == code


async def test_who_is_not_known_learns_nothing_of_the_models() -> None:
    s = Setting(principal=Unauthenticated("Invalid credentials."))
    exchange = await s.handle({**CHAT, "model": "nope"})
    assert exchange.status == 401
    assert dict(exchange.headers)[b"www-authenticate"] == b"Bearer"


async def test_a_model_that_the_caller_may_not_use_is_refused() -> None:
    s = Setting(principal=Principal("acme", models=frozenset({"other"})))
    assert (await s.handle()).status == 403


async def test_a_refused_reservation_answers_with_retry_after() -> None:
    s = Setting()

    async def refuse(principal: Principal, **asked: Any) -> Any:
        raise RateLimited(
            "slow down",
            retry_after_s=1.2,
            headers=[(b"x-ratelimit-x", b"0")],
            details={"limit": {"rule": "few", "unit": "requests", "per": ["tenant"]}},
        )

    s.limiter.reserve = refuse  # type: ignore[method-assign]
    exchange = await s.handle()
    headers = dict(exchange.headers)
    assert exchange.status == 429
    assert (headers[b"retry-after"], headers[b"retry-after-ms"]) == (b"2", b"1200")
    assert headers[b"x-ratelimit-x"] == b"0"
    assert error_of(exchange)["limit"] == {"rule": "few", "unit": "requests", "per": ["tenant"]}
    assert (s.record.reason, s.record.limit) == ("rate_limit_exceeded", "few")
    # One line of the log explains it.
    assert (s.record.limit_unit, s.record.limit_per) == ("requests", ["tenant"])
    assert s.record.retry_after_ms == 1200
    assert s.pool.asked == []


async def test_a_stream_that_fails_midway_settles_what_was_relayed() -> None:
    s = Setting(stream(EVENT, EVENT, EVENT))
    exchange = await s.handle()
    assert exchange.ended == "aborted"
    assert s.limiter.reservations[0].settled == (7, 0, 2)
    assert (s.record.status, s.record.reason) == (200, "upstream_error")


async def test_a_failure_before_any_output_is_refunded() -> None:
    s = Setting(whole(503, b"{}"), whole(503, b"{}"))
    exchange = await s.handle()
    assert exchange.status == 503
    assert s.limiter.reservations[0].abandoned


@pytest.mark.parametrize("events", [0, 1, 3])
async def test_a_client_that_leaves_is_logged_once_and_charged_for_what_it_got(events: int) -> None:
    def play(upstream: FakeUpstream) -> None:
        upstream.handler.on_head(200, [(b"content-type", b"text/event-stream")])
        for _ in range(events):
            upstream.handler.on_body(EVENT)

    s = Setting(play)
    exchange = FakeExchange(request(body=orjson.dumps(CHAT)))
    task = asyncio.ensure_future(s.pipeline.handle(exchange))
    for _ in range(8):
        await asyncio.sleep(0)
    exchange.gone = True
    task.cancel()
    await task
    assert s.pool.connections[0].aborted
    assert (s.record.status, s.record.reason) == (499, "client_gone")
    reservation = s.limiter.reservations[0]
    if events:
        assert reservation.settled == (7, 0, events - 1)
        assert s.record.tokens_estimated is True
    else:
        assert reservation.abandoned


async def test_the_log_says_how_the_limits_were_applied() -> None:
    s = Setting(stream(EVENT, DONE))
    reserve = s.limiter.reserve

    async def degraded(principal: Principal, **asked: Any) -> Any:
        reservation = await reserve(principal, **asked)
        reservation.degraded, reservation.shadow_refusals = True, ("quiet",)
        return reservation

    s.limiter.reserve = degraded  # type: ignore[method-assign]
    await s.handle()
    assert s.record.limits_degraded is True
    assert s.record.shadow_refusals == ["quiet"]


async def test_models_are_those_that_the_caller_may_use() -> None:
    s = Setting(principal=Principal("acme", models=frozenset({"m"})))
    exchange = await s.handle(b"", path="/v1/models", method="GET")
    cards = orjson.loads(exchange.body)["data"]
    assert [card["id"] for card in cards] == ["m", "alias"]
    assert cards[0]["max_model_len"] == 100


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/models/m", 200),
        ("GET", "/v1/models/nope", 404),
        ("GET", "/healthz", 200),
        ("GET", "/", 404),
        ("GET", "/metrics", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("OPTIONS", "/v1/models", 405),
    ],
)
async def test_routes(method: str, path: str, status: int) -> None:
    s = Setting()
    exchange = await s.handle(b"", path=path, method=method)
    assert exchange.status == status
    if status == 405:
        assert b"allow" in dict(exchange.headers)


async def test_an_unexpected_failure_is_one_500_and_nothing_is_kept() -> None:
    s = Setting()

    async def broken(**asked: Any) -> Any:
        raise RuntimeError("boom")

    s.limiter.reserve = broken  # type: ignore[method-assign]
    exchange = await s.handle()
    assert exchange.status == 500
    assert "boom" not in error_of(exchange)["message"]


async def test_the_end_of_the_last_exchange_is_told_after_its_record_was_written() -> None:
    s = Setting()
    gate = asyncio.Event()
    told: list[tuple[int, int]] = []

    async def wait(principal: Principal, **asked: Any) -> Any:
        await gate.wait()
        raise Unavailable("enough")

    s.limiter.reserve = wait  # type: ignore[method-assign]
    s.pipeline.on_quiet = lambda: told.append((s.pipeline.in_flight, len(s.log.records)))
    exchanges = [FakeExchange(request(body=orjson.dumps(CHAT))) for _ in range(2)]
    tasks = [asyncio.ensure_future(s.pipeline.handle(exchange)) for exchange in exchanges]
    unborn = asyncio.ensure_future(s.pipeline.handle(FakeExchange(request())))
    unborn.cancel()  # before its first step: it never was
    await asyncio.sleep(0)
    assert s.pipeline.in_flight == 2
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    assert (s.pipeline.in_flight, told) == (1, [])
    gate.set()
    await asyncio.wait([*tasks, unborn])
    assert told == [(0, 2)]
