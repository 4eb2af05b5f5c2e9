from __future__ import annotations

from typing import Any

import pytest

from core.errors import BadRequest
from proxy.call import REFUSED
from proxy.surfaces.responses import RESPONSES, as_chat


def test_text_is_what_the_user_says() -> None:
    assert as_chat({"instructions": "Be brief.", "input": "Hello"}) == {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello"},
        ]
    }


def test_items_become_messages() -> None:
    said = [{"type": "input_text", "text": "Hello"}]
    chat = as_chat(
        {
            "input": [
                {"role": "user", "content": said},
                {"type": "reasoning", "summary": [{"text": "Hm."}]},
                {"type": "message", "role": "assistant", "content": "Let me see."},
                {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "ok"},
                {"type": "function_call", "call_id": "d", "name": "look", "arguments": "{}"},
            ],
            "tools": [
                {"type": "function", "name": "look", "parameters": {"type": "object"}},
                {"type": "web_search"},
            ],
        }
    )

    def call(number: str) -> dict[str, Any]:
        function = {"name": "look", "arguments": "{}"}
        return {"id": number, "type": "function", "function": function}

    assert chat["messages"] == [
        {"role": "user", "content": said},
        {
            "role": "assistant",
            "reasoning": "Hm.",
            "content": "Let me see.",
            "tool_calls": [call("c")],
        },
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
        {"role": "assistant", "tool_calls": [call("d")]},
    ]
    function = {"name": "look", "description": None, "parameters": {"type": "object"}}
    assert chat["tools"] == [{"type": "function", "function": function}]


def test_what_an_assistant_says_twice_is_two_messages() -> None:
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]}
    assert as_chat({"input": [said, said]})["messages"] == [
        {"role": "assistant", "content": "Yes."},
        {"role": "assistant", "content": "Yes."},
    ]


def test_how_much_is_thought() -> None:
    assert as_chat({"input": "a", "reasoning": {"effort": "low"}})["reasoning_effort"] == "low"
    assert "reasoning_effort" not in as_chat({"input": "a", "reasoning": {"effort": None}})


@pytest.mark.parametrize("document", [{}, {"input": 5}, {"input": ["Hello"]}])
def test_input_is_text_or_items(document: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as caught:
        as_chat(document)
    assert caught.value.param == "input"


def test_the_bound_is_max_output_tokens_and_nobody_chooses_an_id() -> None:
    body = b'{"model":"m","input":"Hello","max_output_tokens":5,"request_id":"resp_other"}'
    call = RESPONSES.parse(body, REFUSED)
    assert (call.max_output_tokens, call.bound) == (5, "max_output_tokens")
    assert b"request_id" not in call.upstream_body("m", "")
