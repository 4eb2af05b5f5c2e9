from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import BadRequest
from routing.messages import canonical, dump_tools, normalise, plain
from routing.weight import exceeds


def one(message: dict[str, Any], *, as_parts: bool = False) -> dict[str, Any]:
    [result] = normalise([message], as_parts=as_parts, developer=True).messages
    return result


def test_a_plain_message_is_copied() -> None:
    message = {"role": "user", "content": "hi"}
    result = one(message)
    assert result == message
    assert result is not message


@pytest.mark.parametrize(
    ("content", "text", "parts"),
    [
        (None, "", []),
        ("", "", [{"type": "text", "text": ""}]),
        ("hi", "hi", [{"type": "text", "text": "hi"}]),
        (["a", "b"], "a\nb", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        (
            [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "no"}],
            "a\nno",
            [{"type": "text", "text": "a"}, {"type": "text", "text": "no"}],
        ),
        ([{"type": "text", "text": None}], "", []),
        (
            [{"type": "text", "text": "a", "cache_control": 1}],
            "a",
            [{"type": "text", "text": "a", "cache_control": 1}],
        ),
        (
            [{"type": "tool_reference", "name": "f"}],
            "f",
            [{"type": "tool_reference", "name": "f"}],
        ),
    ],
)
def test_content_as_text_and_as_parts(content: Any, text: str, parts: list[Any]) -> None:
    message = {"role": "user", "content": content}
    assert one(message)["content"] == text
    assert one(message, as_parts=True)["content"] == parts


def test_unknown_fields_are_dropped_and_names_kept() -> None:
    message = {"role": "user", "content": "x", "name": "Ada", "secret": 1, "tool_calls": [1]}
    assert one(message) == {"role": "user", "content": "x", "name": "Ada"}


@pytest.mark.parametrize(
    ("arguments", "parsed"),
    [
        ('{"a": 1}', {"a": 1}),
        ("{broken", {}),
        ("[1]", {}),
        ("", {}),
        (None, {}),
        ({"a": 2}, {"a": 2}),
        ("[" * 100_000, {}),
    ],
)
def test_arguments_of_tool_calls_become_objects(arguments: Any, parsed: dict[str, Any]) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    result = one({"role": "assistant", "content": None, "tool_calls": [call]})
    assert result["tool_calls"][0]["function"] == {"name": "f", "arguments": parsed}
    assert call["function"]["arguments"] == arguments  # type: ignore[index]


def test_assistant_extras() -> None:
    assert "tool_calls" not in one({"role": "assistant", "content": "x", "tool_calls": []})
    result = one({"role": "assistant", "content": "x", "reasoning": "r"})
    assert result["reasoning"] == result["reasoning_content"] == "r"


def test_tool_results_are_text_even_for_templates_that_want_parts() -> None:
    message = {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "a"}, "b"]}
    expected = {"role": "tool", "content": "a\nb", "tool_call_id": "1"}
    assert one(message, as_parts=True) == expected


def test_developer_becomes_system_where_the_template_lacks_it() -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "developer", "content": "d"},
        {"role": "user", "content": "u"},
        {"role": "developer", "content": "late"},
    ]
    kept = normalise(messages, as_parts=False, developer=True).messages
    assert [m["role"] for m in kept] == ["system", "developer", "user", "developer"]
    folded = normalise(messages, as_parts=False, developer=False).messages
    assert folded == [
        {"role": "system", "content": "s\n\nd"},
        {"role": "user", "content": "u"},
        {"role": "system", "content": "late"},
    ]


@pytest.mark.parametrize("as_parts", [False, True])
def test_the_billing_line_is_dropped(as_parts: bool) -> None:
    line = "x-anthropic-billing-header: cch=1;"
    result = one({"role": "system", "content": line + "\nYou are"}, as_parts=as_parts)
    assert "billing" not in str(result)
    assert "You are" in str(result)
    parts = one({"role": "system", "content": [line, "rest"]}, as_parts=as_parts)
    assert "billing" not in str(parts)
    assert "billing" in str(one({"role": "user", "content": line}, as_parts=as_parts))


def test_media_are_collected_by_digest() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:..."}}
    conversation = normalise(
        [{"role": "user", "content": [{"type": "text", "text": "see"}, image]}],
        as_parts=False,
        developer=True,
    )
    assert conversation.messages[0]["content"] == "see"
    assert len(conversation.media) == 1
    other = {"type": "image_url", "image_url": {"url": "data:other"}}
    again = normalise([{"role": "user", "content": [image, other]}], as_parts=True, developer=True)
    assert again.media[0] == conversation.media[0] != again.media[1]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ("hi", "messages"),
        ({}, "messages"),
        ([], "messages"),
        (["hi"], "messages[0]"),
        ([{"role": "user", "content": "x"}, 5], "messages[1]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": 1, "content": "x"}], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([{"role": {}, "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": {"a": 1}}], "messages[0].content"),
        ([{"role": "user", "content": [5]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": 5}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": ["text"]}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": {}}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text", "text": 5}]}], "messages[0].content[0]"),
        ([{"role": "assistant", "tool_calls": 5}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [5]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{"function": 1}]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{"function": {}}]}], "messages[0].tool_calls"),
    ],
)
def test_malformed_messages_are_named(messages: object, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        normalise(messages, as_parts=False, developer=False)
    assert caught.value.param == param


def test_tools_have_their_declared_fields_first() -> None:
    assert dump_tools(None) is None
    tool = {"function": {"strict": True, "name": "f", "parameters": {"b": 1, "a": 2}}, "extra": 1}
    [dumped] = dump_tools([tool])  # type: ignore[misc]
    assert list(dumped) == ["type", "function", "extra"]
    assert dumped["type"] == "function"
    assert list(dumped["function"]) == ["name", "description", "parameters", "strict"]
    assert dumped["function"]["description"] is None
    assert list(dumped["function"]["parameters"]) == ["b", "a"]


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ("x", "tools"),
        ([1], "tools[0].function"),
        ([{"type": "function"}], "tools[0].function"),
        ([{"function": {"name": None}}], "tools[0].function.name"),
    ],
)
def test_malformed_tools_are_named(tools: object, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        dump_tools(tools)
    assert caught.value.param == param


@pytest.mark.parametrize("value", ["\ud800", 2**70, {"a": object()}])
def test_what_json_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(BadRequest):
        canonical(value)


BILLING = "x-anthropic-billing-header: cch=1;"
ODD = st.sampled_from(
    [
        5,
        None,
        {"role": "user"},
        {"content": "x"},
        {"role": "user", "content": "x", "name": "Ada"},
        {"role": "user", "text": "x"},
        {"role": "user", "content": None},
        {"role": "user", "content": ["x"]},
        {"role": ["user"], "content": "x"},
        {"role": "tool", "content": "x"},
        {"role": "developer", "content": "x"},
        {"role": "system", "content": BILLING},
    ]
)
PLAIN = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system"]),
        "content": st.text(max_size=30) | st.just("x" * 300),
    }
)


@given(st.lists(PLAIN | ODD, max_size=4), st.booleans(), st.integers(0, 1200))
def test_plain_chats_come_out_as_normalised(
    messages: list[Any], as_parts: bool, limit: int
) -> None:
    result = plain(messages, as_parts=as_parts, limit=limit)
    if result is not None:
        assert result == normalise(messages, as_parts=as_parts, developer=False).messages
        assert not exceeds([messages], limit)


@given(st.lists(PLAIN, min_size=1, max_size=4), st.booleans(), st.integers(0, 1200))
def test_only_weight_makes_common_chats_unusual(
    messages: list[Any], as_parts: bool, limit: int
) -> None:
    heavy = exceeds([messages], limit)
    assert (plain(messages, as_parts=as_parts, limit=limit) is None) is heavy


def test_the_billing_line_is_for_the_long_way() -> None:
    for role, known in (("system", False), ("user", True)):
        message = {"role": role, "content": BILLING + "\nYou are"}
        assert (plain([message], as_parts=False, limit=1000) is not None) is known
