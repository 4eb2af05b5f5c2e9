"""What the fake replica says, byte for byte beside captures of a real vLLM 0.32."""

from __future__ import annotations

import json
import re

import pytest
from beside import beside

from loadtest.replica import dialect


def bytes_of(file):
    return beside(f"vllm/fixtures/{file}").read_bytes()


def captured(name):
    """(head lines, events) of one captured answer."""
    head, _, body = bytes_of(f"{name}.bin").partition(b"\r\n\r\n")
    events = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        events.append(body[:length])
        body = body[length + 2 :]
    return head.decode().split("\r\n"), [event for event in events if event]


def wording(events, chat=True, **changes):
    """The wording of ours that should give the captured events."""
    first = json.loads(events[0][6:])
    fields = (first["id"], first["created"], first["model"])
    return dialect.Wording(chat, *fields, **{"prompt_ids": range(125), **changes})


def said(event):
    choice = json.loads(event[6:])["choices"][0]
    return choice["delta"]["content"] if "delta" in choice else choice["text"]


def stream(words, texts, ids=None):
    """All token events of an answer that ends by length."""
    ids = ids or [0] * len(texts)
    events = [words.role_event()] if words.chat else []
    for number, text in enumerate(texts, 1):
        reason = "length" if number == len(texts) else None
        events.append(words.token_event(text, ids[number - 1], number, reason, 0))
    return events


def without_metrics(event):
    return re.sub(rb',"metrics":\{[^}]*\}', b"", event)


def test_a_chat_stream():
    _, events = captured("sse_chat")
    assert [*stream(wording(events), map_said(events[1:-1])), dialect.DONE] == events


def map_said(events):
    return [said(event) for event in events]


def test_a_chat_stream_with_usage():
    _, events = captured("sse_chat_usage")
    words = wording(events, include_usage=True)
    ours = [*stream(words, map_said(events[1:-2])), words.usage_event(5, 96), dialect.DONE]
    assert ours == [without_metrics(event) for event in events]


def test_a_chat_stream_with_continuous_usage():
    _, events = captured("sse_chat_continuous_usage")
    words = wording(events, include_usage=True, continuous=True)
    ours = [*stream(words, map_said(events[1:-2])), words.usage_event(5, 96), dialect.DONE]
    assert ours == [without_metrics(event) for event in events]


def test_a_chat_stream_with_token_ids():
    _, events = captured("sse_chat_token_ids")
    documents = [json.loads(event[6:]) for event in events[:-1]]
    ids = [document["choices"][0]["token_ids"][0] for document in documents[1:]]
    words = wording(events, token_ids=True, prompt_ids=documents[0]["prompt_token_ids"])
    assert [*stream(words, map_said(events[1:-1]), ids), dialect.DONE] == events


def test_a_completion_stream():
    _, events = captured("sse_completion")
    words = wording(events, chat=False, include_usage=True, prompt_ids=range(2))
    ours = [*stream(words, map_said(events[:-2])), words.usage_event(3, 0), dialect.DONE]
    assert ours == [without_metrics(event) for event in events]


def test_the_fast_path_says_the_same():
    for name, chat in (("sse_chat", True), ("sse_completion", False)):
        _, events = captured(name)
        before, after = wording(events, chat).halves()
        assert before + said(events[1]).encode() + after == events[1]


def test_heads():
    lines, _ = captured("sse_chat")
    ours = dialect.head(200, dialect.EVENT_STREAM, None, lines[1][6:])
    shown = [line for line in lines if not line.startswith(("x-request-id", "connection"))]
    assert ours.decode().split("\r\n")[:-2] == shown


def key_tree(value):
    if isinstance(value, dict):
        return [(key, key_tree(inner)) for key, inner in value.items()]
    if isinstance(value, list):
        return [key_tree(value[0])] if value and isinstance(value[0], dict) else "list or null"
    return None


def body_of(name):
    return json.loads(bytes_of(f"{name}.bin").partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize(("name", "chat"), [("json_chat", True), ("json_completion", False)])
def test_whole_answers(name, chat):
    theirs = body_of(name)
    theirs.pop("metrics")
    words = dialect.Wording(
        chat, theirs["id"], theirs["created"], theirs["model"], [1], token_ids=chat
    )
    ours = json.loads(words.document("x", [1], 0, "length"))
    assert key_tree(ours) == key_tree(theirs)


def test_errors():
    assert dialect.no_such_model("nope", "tiny-qwen3") == body_of("err_model")
    assert dialect.too_long(1025, 1024, exact=False) == body_of("err_toolong")
    assert dialect.too_long(1500, 1024, exact=True) == body_of("err_comp_toolong")
    busy = bytes_of("err_503_overload.json")
    assert dialect.compact(dialect.error(503)).encode() == busy
    overload = bytes_of("sse_overload_error_in_200.bin")
    assert dialect.error_event(503) + dialect.DONE == overload
    killed = bytes_of("sse_engine_killed.bin")
    assert killed.endswith(
        b"".join(map(dialect.chunk, (dialect.error_event(500), dialect.DONE))) + dialect.LAST_CHUNK
    )
    comments = bytes_of("sse_keepalive_comments.bin")
    assert dialect.chunk(dialect.COMMENT) in comments


def test_the_model_card():
    ours = dialect.model_card("tiny-qwen3", 1024, 1)
    assert key_tree(ours) == key_tree(body_of("json_models"))
