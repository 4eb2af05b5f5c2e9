from __future__ import annotations

import json

import pytest

from loadtest.replica import dialect


def read(event):
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    return json.loads(event[6:])


def test_a_chat_begins_with_a_role_and_ends_with_a_reason():
    words = dialect.Wording(True, "a", 1, "m", [7, 8], token_ids=True)
    first = read(words.role_event())
    assert (first["id"], first["object"], first["created"]) == ("a", "chat.completion.chunk", 1)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["prompt_token_ids"] == [7, 8]
    last = read(words.token_event("x", 9, 1, "length", 0))
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["choices"][0]["token_ids"] == [9]


@pytest.mark.parametrize("chat", [True, False])
def test_the_halves_are_those_of_a_plain_event(chat):
    words = dialect.Wording(chat, "a", 1, "m", [7])
    before, after = words.halves()
    assert words.plain
    assert before + b"text" + after == words.token_event("text", 9, 1, None, 0)


@pytest.mark.parametrize("chat", [True, False])
def test_usage_is_an_event_without_choices_or_in_every_event(chat):
    words = dialect.Wording(chat, "a", 1, "m", range(5), include_usage=True, continuous=True)
    last = read(words.usage_event(3, 4))
    assert last["choices"] == []
    assert (last["usage"]["prompt_tokens"], last["usage"]["total_tokens"]) == (5, 8)
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == 4
    assert not words.plain
    assert read(words.token_event("x", 9, 2, None, 0))["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("chat", [True, False])
def test_a_whole_answer(chat):
    words = dialect.Wording(chat, "a", 1, "m", [7, 8])
    answer = json.loads(words.document("said", [9], 1, "stop"))
    choice = answer["choices"][0]
    assert (choice["message"]["content"] if chat else choice["text"]) == "said"
    assert choice["finish_reason"] == "stop"
    assert answer["usage"]["total_tokens"] == 3


def test_a_head_has_a_length_or_chunks():
    assert b"\r\ntransfer-encoding: chunked\r\n\r\n" in dialect.head(200, dialect.EVENT_STREAM)
    whole = dialect.head(404, length=5)
    assert whole.startswith(b"HTTP/1.1 404 Not Found\r\n")
    assert b"content-length: 5\r\n" in whole
    assert b"transfer-encoding" not in whole
    assert dialect.chunk(b"x" * 17) == b"11\r\n" + b"x" * 17 + b"\r\n"


def test_errors_name_their_code():
    assert read(dialect.error_event(503))["error"]["code"] == 503
    assert dialect.error(429, "slow")["error"]["message"] == "slow"
    assert dialect.no_such_model("nope", "m")["error"]["param"] == "model"
    assert "at least 7 input tokens" in dialect.too_long(7, 5, exact=False)["error"]["message"]
    assert "contains 7 input tokens" in dialect.too_long(7, 5, exact=True)["error"]["message"]


def test_text_is_escaped_as_json():
    words = dialect.Wording(True, 'a"b', 1, "m", [])
    event = words.token_event('say "ü"\n', 1, 1, None, 0)
    assert event.startswith(b'data: {"id":"a\\"b"')
    assert json.loads(event[6:])["choices"][0]["delta"]["content"] == 'say "ü"\n'
    assert "ü".encode() in event


def test_a_stamp_is_in_every_token_event():
    words = dialect.Wording(True, "a", 1, "m", [], stamp=True)
    assert not words.plain
    assert json.loads(words.token_event("x", 1, 1, None, 42)[6:])["sent_at_ns"] == 42
