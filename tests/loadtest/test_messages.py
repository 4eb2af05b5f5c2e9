from __future__ import annotations

import json

import pytest

from loadtest.replica import messages

WORDS = messages.MessageWording("a", "m", range(9))


def read(event: bytes) -> dict:
    name, data, *rest = event.decode().split("\n")
    document = json.loads(data.removeprefix("data: "))
    assert name == f"event: {document['type']}"
    assert rest == ["", ""]
    return document


def test_a_stream_begins_and_ends_with_a_message():
    events = [
        *WORDS.opening(),
        WORDS.token_event(" x", 1, 1, "stop", 0),
        *WORDS.closing(lambda: " x", 1, 4, "length", usage=True, end=True),
    ]
    documents = [read(event) for event in events]
    assert [document["type"] for document in documents] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert documents[0]["message"]["usage"]["input_tokens"] == 9
    assert documents[2]["delta"]["text"] == " x"
    assert documents[4]["delta"]["stop_reason"] == "max_tokens"
    assert documents[4]["usage"]["input_tokens"] == 5
    assert documents[4]["usage"]["cache_read_input_tokens"] == 4


def test_the_end_and_the_usage_can_be_missing():
    documents = [read(event) for event in WORDS.closing(str, 1, 0, "stop", usage=False, end=False)]
    assert [document["type"] for document in documents] == ["content_block_stop", "message_delta"]
    assert "usage" not in documents[1]


def test_errors_have_another_shape():
    [failure] = WORDS.failure(503)
    document = read(failure)
    assert document == WORDS.error_body(503)
    assert document["error"]["type"] == "Service Unavailable"


def test_an_answer_in_one_piece():
    document = json.loads(WORDS.document("text", [1, 2], 0, "stop"))
    assert document["content"] == [{"type": "text", "text": "text"}]
    assert document["usage"]["output_tokens"] == 2


def test_a_body_stands_for_a_chat():
    body = {
        "model": "m",
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
        "max_tokens": 5,
    }
    assert messages.as_chat(body) == {
        "model": "m",
        "max_tokens": 5,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello"},
        ],
    }
    with pytest.raises(KeyError):
        messages.as_chat({"messages": [{}]})
