from __future__ import annotations

from typing import Any

import msgspec
import pytest
from fakes import FakeExchange, FakeUpstream, lost, request, whole
from pipeline_setting import Setting

from core.errors import BadRequest, UpstreamUnreachable
from proxy.passthrough import PassthroughRule, delivery_of, model_of

SPEECH = PassthroughRule(path="/v1/audio/speech", model="m")
ANY = PassthroughRule(path="/v1/audio/transcriptions")
FORM = b"multipart/form-data; boundary=xYzZY"
SOUND = b"RIFF\x00\xff\r\n--other\r\n"


def form(*fields: tuple[bytes, bytes]) -> bytes:
    head = b"Content-Disposition: form-data; name="
    parts = [b'--xYzZY\r\n%b"%b"\r\n\r\n%b\r\n' % (head, name, value) for name, value in fields]
    return b"".join(parts) + b"--xYzZY--\r\n"


def ask(body: bytes, content_type: bytes, path: str = ANY.path) -> FakeExchange:
    headers = [(b"content-type", content_type), (b"authorization", b"Bearer secret")]
    return FakeExchange(request(path=path, headers=headers, body=body))


@pytest.mark.parametrize(
    "content_type", [FORM, b'multipart/form-data; charset=utf-8; boundary="xYzZY"']
)
def test_a_form_names_its_model(content_type: bytes) -> None:
    body = form((b"file", SOUND), (b"model", b"alias"), (b"language", b"en"))
    assert model_of(ANY, ask(body, content_type).request) == "alias"


def test_json_names_its_model() -> None:
    assert model_of(ANY, ask(b'{"model": "alias"}', b"application/json").request) == "alias"


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (form((b"file", SOUND)), FORM),
        (form((b"model", b"a"), (b"model", b"b")), FORM),
        (form((b"file", b'name="model"\r\n\r\nm')), FORM),
        (b"{}", b"application/json"),
        (b'{"model": 5}', b"application/json"),
        (b"[]", b"application/json"),
        (b"\x00", b"audio/wav"),
    ],
)
def test_what_names_no_model_or_two_is_refused(body: bytes, content_type: bytes) -> None:
    with pytest.raises(BadRequest):
        model_of(ANY, ask(body, content_type).request)


def test_a_rule_may_say_whose_it_is() -> None:
    assert model_of(SPEECH, ask(b"\x00", b"audio/wav").request) == "m"


def test_the_bytes_and_the_media_types_go_on_and_no_credential() -> None:
    exchange = ask(SOUND, FORM)
    exchange.request.query = "beta=1"
    delivery = delivery_of(exchange.request, exchange.id, "m", ())
    assert (delivery.body, delivery.path) == (SOUND, b"/v1/audio/transcriptions?beta=1")
    names = [name for name, _ in delivery.headers]
    assert names == [b"x-request-id", b"content-type"]
    assert dict(delivery.headers)[b"content-type"] == FORM


@pytest.mark.parametrize(
    "rule",
    [
        {"path": "v1/audio"},
        {"path": "/v1/../secret"},
        {"path": "/v1/chat/completions", "model": "m"},
        {"path": "/v1/models/x", "model": "m"},
        {"path": "/v1/audio", "methods": []},
        {"path": "/v1/audio", "methods": ["GET"]},
        {"path": "/v1/audio", "model": "m", "methods": ["PUT"]},
    ],
)
def test_rules_that_make_no_sense(rule: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(rule, PassthroughRule)


def sound(upstream: FakeUpstream) -> None:
    upstream.handler.on_head(200, [(b"content-type", b"audio/wav")])
    upstream.handler.on_body(SOUND)
    upstream.handler.on_body(SOUND)
    upstream.handler.on_end()


async def handle(s: Setting, exchange: FakeExchange) -> FakeExchange:
    await s.pipeline.handle(exchange)
    assert s.router.held == 0
    return exchange


async def test_sound_flows_and_costs_a_request_alone() -> None:
    s = Setting(sound, passthrough={SPEECH.path: SPEECH})
    exchange = await handle(s, ask(SOUND, b"application/json", SPEECH.path))
    assert (exchange.status, exchange.body, exchange.ended) == (200, SOUND * 2, "finished")
    assert dict(exchange.headers)[b"content-type"] == b"audio/wav"
    assert exchange.writes == 2
    assert s.pool.connections[0].sent == [(b"POST", b"/v1/audio/speech", SOUND)]
    assert s.limiter.asked[0]["prompt_tokens"] == s.limiter.asked[0]["max_output_tokens"] == 0
    assert s.limiter.reservations[0].settled == (0, 0, 0)
    assert (s.record.route, s.record.model, s.record.settled_tokens) == (SPEECH.path, "m", 0)


async def test_json_waits_for_its_end_and_is_tried_elsewhere() -> None:
    text = b'{"text": "Hello", "usage": {"prompt_tokens": 5}}'
    s = Setting(UpstreamUnreachable("Away."), whole(200, text), passthrough={ANY.path: ANY})
    exchange = await handle(s, ask(form((b"model", b"alias")), FORM))
    assert (exchange.status, exchange.body, s.record.tries) == (200, text, 2)
    assert s.limiter.reservations[0].settled == (0, 0, 0)


async def test_what_breaks_in_the_middle_ends_abruptly() -> None:
    def broken(upstream: FakeUpstream) -> None:
        upstream.handler.on_head(200, [(b"content-type", b"audio/wav")])
        upstream.handler.on_body(SOUND)
        upstream.handler.on_failed(UpstreamUnreachable("Gone."))

    s = Setting(broken, passthrough={SPEECH.path: SPEECH})
    exchange = await handle(s, ask(SOUND, b"audio/wav", SPEECH.path))
    assert (exchange.body, exchange.ended) == (SOUND, "aborted")


@pytest.mark.parametrize(
    ("method", "path", "model", "status"),
    [
        ("GET", SPEECH.path, "m", 405),
        ("POST", "/v1/audio/translations", "m", 404),
        ("POST", ANY.path, "nope", 404),
    ],
)
async def test_what_is_not_open_stays_closed(
    method: str, path: str, model: str, status: int
) -> None:
    s = Setting(lost(UpstreamUnreachable("No.")), passthrough={r.path: r for r in (SPEECH, ANY)})
    exchange = await s.handle({"model": model}, path=path, method=method)
    assert exchange.status == status
    assert s.pool.connections == []
