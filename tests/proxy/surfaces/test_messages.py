from __future__ import annotations

from typing import Any

import pytest

from core.errors import BadRequest
from proxy.call import REFUSED
from proxy.surfaces.messages import COUNT_TOKENS, MESSAGES, as_chat

USER = {"role": "user", "content": "Hello"}


def messages(document: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = as_chat(document)["messages"]
    return found


def test_text_stays_as_it_is() -> None:
    assert as_chat({"messages": [USER]}) == {"messages": [USER]}


@pytest.mark.parametrize(
    "system", ["Be brief.", [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]]
)
def test_the_system_comes_first(system: object) -> None:
    assert messages({"system": system, "messages": [USER]}) == [
        {"role": "system", "content": "Be brief."},
        USER,
    ]


def test_tools_and_what_became_of_them() -> None:
    chat = as_chat(
        {
            "messages": [
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm."},
                        {"type": "text", "text": "Let me see."},
                        {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "it"}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "t1",
                            "content": [{"text": "ok"}, {"text": "fine"}],
                        },
                        {"type": "text", "text": "And?"},
                        {"type": "text", "text": "So?"},
                    ],
                },
            ],
            "tools": [{"name": "look", "description": "d", "input_schema": {"type": "object"}}],
            "chat_template_kwargs": {"enable_thinking": False},
        }
    )
    call = {"id": "t1", "type": "function", "function": {"name": "look", "arguments": {"at": "it"}}}
    assert chat["messages"] == [
        {
            "role": "assistant",
            "reasoning": "Hm.",
            "tool_calls": [call],
            "content": "Let me see.",
        },
        {"role": "tool", "tool_call_id": "t1", "content": "ok\nfine"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "And?"}, {"type": "text", "text": "So?"}],
        },
    ]
    function = {"name": "look", "description": "d", "parameters": {"type": "object"}}
    assert chat["tools"] == [{"type": "function", "function": function}]
    assert chat["chat_template_kwargs"] == {"enable_thinking": False}


BILLING = "x-anthropic-billing-header: cc_version=1; cch=3f2"


def test_what_differs_in_each_request_is_left_out_as_vllm_does() -> None:
    blocks = [{"type": "text", "text": BILLING}, {"type": "text", "text": "Be brief."}]
    inline = {"role": "system", "content": [{"type": "text", "text": "Be kind."}]}
    assert messages({"system": blocks, "messages": [USER, inline]}) == [
        {"role": "system", "content": "Be brief."},
        USER,
        {"role": "system", "content": "Be kind."},
    ]
    assert messages({"system": BILLING, "messages": [USER]}) == [USER]


def test_blocks_that_are_no_text_for_the_model_are_left_out() -> None:
    blocks = [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": ""}]
    said = {"role": "assistant", "content": [*blocks, {"type": "text", "text": "Hello"}]}
    assert messages({"messages": [said]}) == [{"role": "assistant", "content": "Hello"}]


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({"thinking": {"type": "disabled"}}, "none"),
        ({"output_config": {"effort": "low"}}, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, None),
        ({}, None),
    ],
)
def test_how_much_is_thought(fields: dict[str, Any], effort: str | None) -> None:
    assert as_chat({"messages": [USER], **fields}).get("reasoning_effort") == effort


def test_a_message_of_results_alone_has_no_text() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": "ok"}
    assert messages({"messages": [{"role": "user", "content": [result]}]}) == [
        {"role": "tool", "tool_call_id": "t", "content": "ok"}
    ]


def test_a_picture_is_a_part_that_is_no_text() -> None:
    block = {"type": "image", "source": {"type": "base64", "data": "AAAA"}}
    [message] = messages({"messages": [{"role": "user", "content": [block]}]})
    assert message["content"] == [{"type": "image_url", "image_url": block["source"]}]


def test_a_picture_that_a_tool_gave_is_a_message_of_its_own() -> None:
    block = {"type": "image", "source": {"type": "url", "url": "u"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [block]}
    assert messages({"messages": [{"role": "user", "content": [result]}]})[1] == {
        "role": "user",
        "content": [{"type": "image_url", "image_url": block["source"]}],
    }


@pytest.mark.parametrize("document", [{}, {"messages": "Hello"}, {"messages": None}])
def test_messages_must_be_a_list(document: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="must be a list") as caught:
        as_chat(document)
    assert caught.value.param == "messages"


def test_a_tool_must_be_an_object() -> None:
    with pytest.raises(BadRequest, match="must be an object"):
        as_chat({"messages": [USER], "tools": ["look"]})


def test_the_bound_is_max_tokens_and_usage_always_comes() -> None:
    call = MESSAGES.parse(b'{"model":"m","stream":true,"max_tokens":5,"messages":[]}', REFUSED)
    assert (call.stream, call.max_output_tokens, call.choices) == (True, 5, 1)
    assert call.upstream_body("real", "salt") == (
        b'{"model":"real","stream":true,"max_tokens":5,"messages":[],"cache_salt":"salt"}'
    )


def test_what_steers_the_engine_is_refused_here_too() -> None:
    with pytest.raises(BadRequest, match="kv_transfer_params"):
        MESSAGES.parse(b'{"model":"m","kv_transfer_params":{}}', REFUSED)


def test_counting_generates_nothing() -> None:
    call = COUNT_TOKENS.parse(b'{"model":"m","messages":[]}', REFUSED)
    assert call.max_output_tokens == 0
    assert not call.stream
