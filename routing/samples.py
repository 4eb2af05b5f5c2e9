"""Chats that two template engines must render alike before the faster one is trusted. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Chat = tuple[list[dict[str, Any]], list[dict[str, Any]] | None]

_UNICODE = "Zażółć gęślą jaźń 東京\u00a0🙂\u200d🔥 e\u0301 \u2028<b>&amp;\"\\'{{ x }}{% y %}\ttab"
_SPACES = " \n\t leading and trailing \u00a0\u3000\r\n\n"
_ARGUMENTS: dict[str, Any] = {
    "city": "Paris \"Île\" <x> 'quoted'",
    "days": 3,
    "ratio": 0.5,
    "big": 1e22,
    "whole": 2.0,
    "yes": True,
    "no": False,
    "none": None,
    "list": [1, "b", None, {"z": 1, "a": [True]}],
    "object": {"zeta": {"y": 1.25}, "alpha": "ä"},
    "empty": {},
}


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def _call(name: str, arguments: dict[str, Any], number: int = 1) -> dict[str, Any]:
    return {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


_PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": _UNICODE, "default": None},
        "days": {"type": ["integer", "null"], "minimum": 0, "exclusiveMaximum": 1.5},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "nested": {"type": "array", "items": {"type": "object", "additionalProperties": False}},
    },
    "required": ["city"],
}
_TOOLS = [
    tool("get_weather", description="Weather of <a> city", parameters=_PARAMETERS),
    tool("no_parameters", description=None, parameters=None),
    tool("strict", description=_UNICODE, parameters={"type": "object"}, strict=True),
]

_TURNS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "user", "content": ""}],
    [{"role": "user", "content": _UNICODE}],
    [{"role": "user", "content": _SPACES, "name": "Ada"}],
    [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": _SPACES},
        {"role": "user", "content": "two\n\nthree"},
    ],
    [
        {"role": "user", "content": "think"},
        {"role": "assistant", "content": "<think>\nwhy\n</think>\n\nbecause " + _UNICODE},
        {"role": "user", "content": "again"},
        {
            "role": "assistant",
            "content": "</think>odd<think>",
            "reasoning": "r",
            "reasoning_content": "r",
        },
    ],
    [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "", "tool_calls": [_call("get_weather", _ARGUMENTS)]},
        {"role": "tool", "content": '{"t": 21.5}', "tool_call_id": "call_1"},
        {"role": "assistant", "content": "It is 21.5."},
        {"role": "user", "content": "thanks"},
    ],
    [
        {"role": "user", "content": "both"},
        {
            "role": "assistant",
            "content": "calling",
            "reasoning": _SPACES,
            "reasoning_content": _SPACES,
            "tool_calls": [_call("a", {}), _call("b", {"ü": _UNICODE}, 2)],
        },
        {"role": "tool", "content": "", "tool_call_id": "call_1", "name": "a"},
        {"role": "tool", "content": _UNICODE, "tool_call_id": "call_2", "name": "b"},
    ],
    [{"role": "assistant", "content": "assistant first"}],
    [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    [{"role": "user", "content": "a"}, {"role": "system", "content": "late"}],
    [{"role": "critic", "content": "unknown role"}],
    [{"role": "user", "content": f"turn {number}"} for number in range(12)],
]
_SYSTEMS: list[list[dict[str, Any]]] = [
    [],
    [{"role": "system", "content": "You are terse."}],
    [{"role": "system", "content": _SPACES}],
    [{"role": "developer", "content": _UNICODE, "tools": None}],
]


def chats(*, as_parts: bool) -> Iterator[Chat]:
    """Every combination of a beginning, turns and tools; contents as parts when `as_parts`."""
    for system in _SYSTEMS:
        for turns in _TURNS:
            for tools in (None, [], _TOOLS):
                messages = [*system, *turns]
                yield [_with_parts(m) for m in messages] if as_parts else messages, tools


def _with_parts(message: dict[str, Any]) -> dict[str, Any]:
    content = message["content"]
    if message["role"] == "tool":
        return message
    half = len(content) // 2
    parts = [{"type": "text", "text": content}]
    if half:
        parts = [{"type": "text", "text": content[:half]}, {"type": "text", "text": content[half:]}]
    return {**message, "content": parts}
