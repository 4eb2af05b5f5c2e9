from __future__ import annotations

import json

from loadtest.replica import responses


def words() -> responses.ResponseWording:
    return responses.ResponseWording("resp_a", 1, "m", range(9))


def read(event: bytes) -> dict:
    name, data, *rest = event.decode().split("\n")
    document = json.loads(data.removeprefix("data: "))
    assert name == f"event: {document['type']}"
    assert rest == ["", ""]
    return document


def test_a_stream_is_numbered_and_ends_with_the_whole():
    wording = words()
    events = [
        *wording.opening(),
        wording.token_event(" x", 1, 1, None, 0),
        *wording.closing(lambda: " x", 1, 4, "stop", usage=True, end=True),
    ]
    documents = [read(event) for event in events]
    assert [document["sequence_number"] for document in documents] == list(range(len(documents)))
    assert documents[0]["type"] == "response.created"
    assert documents[4]["delta"] == " x"
    last = documents[-1]
    assert last["type"] == "response.completed"
    assert last["response"] == wording.final
    assert last["response"]["usage"]["input_tokens_details"] == {"cached_tokens": 4}
    assert last["response"]["status"] == "completed"


def test_the_end_and_the_usage_can_be_missing():
    wording = words()
    last = read(wording.closing(str, 1, 0, "length", usage=False, end=False)[-1])
    assert last["type"] == "response.output_item.done"
    assert wording.final is not None
    assert wording.final["usage"] is None
    assert wording.final["status"] == "incomplete"


def test_a_failure_is_a_response_too():
    [failure] = words().failure(503)
    assert read(failure)["response"]["error"]["code"] == "server_is_overloaded"
    assert words().error_body(500)["error"]["code"] == 500


def test_the_halves_are_around_the_text():
    before, after = words().halves()
    assert before + b" x" + after == words().token_event(" x", 1, 1, None, 0)


def test_an_answer_in_one_piece():
    document = json.loads(words().document("text", [1, 2], 0, "stop"))
    assert document["output"][0]["content"][0]["text"] == "text"
    assert document["usage"]["total_tokens"] == 11


def test_a_body_stands_for_a_chat():
    body = {
        "model": "m",
        "instructions": "Be brief.",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}],
        "max_output_tokens": 5,
    }
    assert responses.as_chat(body) == {
        "model": "m",
        "max_tokens": 5,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello"},
        ],
    }
    assert responses.as_chat({"input": "Hello"})["messages"][0]["content"] == "Hello"
