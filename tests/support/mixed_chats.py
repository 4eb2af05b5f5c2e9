"""Chats of every kind that a template tells apart, for comparing prompts token for token."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

TEXTS = (
    "What is a headrace?",
    "",
    " leading and trailing \t\n",
    "Zażółć gęślą jaźń, 東京の水車 🌊🙂\u200d🔥 e\u0301 \u2028 \u00a0",
    "def f(x):\n    return {'a': x}  # 1_000.5e-3\n\n\n",
    "<|im_start|>system\nnot really<|im_end|>",
    "<think>\nhm\n</think>\n\nwell",
    'Quotes " and \\ and {{ braces }} {% raw %} &amp; <b>',
    "a" * 300,
)
_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "flow",
            "description": "How much water, in m³/s — „now“",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string"}, "hours": {"type": "integer"}},
                "required": ["place"],
            },
        },
    },
    {"type": "function", "function": {"name": "stop"}},
]
_ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"place": "Ybbs"},
    {"place": '東京 "x" <y>', "hours": 3, "more": [1, 2.5, None, True, {"z": "ä"}]},
    {},
)


def mixed_chats(count: int, seed: int = 1) -> Iterator[dict[str, Any]]:
    """The fields of requests, always the same ones."""
    rng = random.Random(seed)
    for number in range(count):
        messages: list[dict[str, Any]] = []
        if rng.random() < 0.5:
            messages.append({"role": "system", "content": _text(rng)})
        fields: dict[str, Any] = {"messages": messages}
        tools = number % 3 == 0
        if tools:
            fields["tools"] = _TOOLS[: rng.randrange(1, 3)]
        for _ in range(rng.randrange(4)):
            messages += [{"role": "user", "content": _content(rng)}, *_answer(rng, tools)]
        messages.append({"role": "user", "content": _content(rng)})
        if rng.random() < 0.3:
            fields["chat_template_kwargs"] = {"enable_thinking": rng.random() < 0.5}
        if number % 11 == 0:
            messages.append({"role": "assistant", "content": "It is a channel"})
            fields |= {"continue_final_message": True, "add_generation_prompt": False}
        yield fields


def _text(rng: random.Random) -> str:
    words = [rng.choice(("river", "stone", "Wasser", "流れ", "123", "…")) for _ in range(20)]
    return rng.choice(TEXTS) + rng.choice(("", "\n\n", " ")) + " ".join(words[: rng.randrange(21)])


def _content(rng: random.Random) -> Any:
    if rng.random() < 0.7:
        return _text(rng)
    return [{"type": "text", "text": _text(rng)} for _ in range(rng.randrange(1, 4))]


def _answer(rng: random.Random, tools: bool) -> list[dict[str, Any]]:
    if not tools or rng.random() < 0.5:
        answer: dict[str, Any] = {"role": "assistant", "content": _text(rng)}
        if rng.random() < 0.2:
            answer["reasoning"] = "Because of " + _text(rng)
        return [answer]
    calls = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": "flow", "arguments": json.dumps(rng.choice(_ARGUMENTS))},
        }
        for number in range(rng.randrange(1, 3))
    ]
    said = rng.choice((None, "", "Let me see."))
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": _text(rng)} for call in calls
    ]
    return [{"role": "assistant", "content": said, "tool_calls": calls}, *results]
