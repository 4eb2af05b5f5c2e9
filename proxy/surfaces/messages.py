"""Anthropic's Messages. The body goes to the replica as it is; only for counting and routing it is
read as the chat that vLLM makes of it. Pure."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from core.errors import BadRequest
from proxy.call import parse_generation, parse_plain
from proxy.surfaces.messages_shape import MESSAGES as SHAPE
from proxy.surfaces.plain import no_usage
from proxy.surfaces.surface import Kind, Surface


def as_chat(document: dict[str, Any]) -> dict[str, Any]:
    """What the chat template is given. Raises BadRequest."""
    given = document.get("messages")
    if not isinstance(given, list):
        raise BadRequest("`messages` must be a list of messages.", param="messages")
    messages: list[Any] = []
    if system := _system(document.get("system")):
        messages.append({"role": "system", "content": system})
    for message in given:
        content = message.get("content") if isinstance(message, dict) else None
        if content is not None and message.get("role") == "system":
            if text := _system(content):
                messages.append({"role": "system", "content": text})
        elif isinstance(content, list):
            messages += _messages(message, content)
        else:
            messages.append(message)
    chat: dict[str, Any] = {"messages": messages}
    if isinstance(tools := document.get("tools"), list) and tools:
        chat["tools"] = [_tool(tool) for tool in tools]
    if (arguments := document.get("chat_template_kwargs")) is not None:
        chat["chat_template_kwargs"] = arguments
    if (effort := _effort(document)) is not None:
        chat["reasoning_effort"] = effort
    return chat


def _effort(document: dict[str, Any]) -> Any:
    thinking, output = document.get("thinking"), document.get("output_config")
    if isinstance(thinking, dict) and thinking.get("type") == "disabled":
        return "none"
    return output.get("effort") if isinstance(output, dict) else None


def _messages(message: dict[str, Any], blocks: list[Any]) -> list[dict[str, Any]]:
    """One message with blocks: results of tools become messages of their own, before it."""
    results: list[dict[str, Any]] = []
    parts: list[Any] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            function = {"name": block.get("name"), "arguments": block.get("input") or {}}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            results += _results(block)
        elif kind == "thinking":
            thoughts.append(str(block.get("thinking") or ""))
        elif kind == "text" and block.get("text"):
            parts.append({"type": "text", "text": block["text"]})
        elif kind == "image":
            parts += _pictures([block])
        elif kind is None:  # refused where a content part is expected
            parts.append(block)
    said: dict[str, Any] = {"role": message.get("role")}
    if thoughts:
        said["reasoning"] = "".join(thoughts)
    if calls:
        said["tool_calls"] = calls
    if len(parts) == 1 and isinstance(parts[0], dict) and parts[0].get("type") == "text":
        said["content"] = parts[0]["text"]
    elif parts:
        said["content"] = parts
    elif not calls and not thoughts:
        return results
    return [*results, said]


def _results(block: dict[str, Any]) -> list[dict[str, Any]]:
    """What a tool gave, and its pictures as if the user had sent them."""
    content = block.get("content")
    said = _joined(content or "", "\n")
    results = [{"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": said}]
    if pictures := _pictures(content):
        results.append({"role": "user", "content": pictures})
    return results


def _pictures(content: Any) -> list[dict[str, Any]]:
    """As parts of a message."""
    return [
        {"type": "image_url", "image_url": block.get("source")}
        for block in (content if isinstance(content, list) else ())
        if isinstance(block, dict) and block.get("type") == "image"
    ]


def _system(content: Any) -> Any:
    """Without the line of Claude Code that is another one in each request."""
    if isinstance(content, list):
        content = [b for b in content if isinstance(b, dict) and not _is_billing(b.get("text"))]
    return None if _is_billing(content) else _joined(content, "")


def _is_billing(text: Any) -> bool:
    return isinstance(text, str) and text.startswith("x-anthropic-billing-header")


def _joined(content: Any, between: str) -> Any:
    """Blocks of text as one text."""
    if not isinstance(content, list):
        return content
    texts = [block.get("text") for block in content if isinstance(block, dict)]
    return between.join([text for text in texts if isinstance(text, str)])


def _tool(tool: Any) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise BadRequest("a tool must be an object", param="tools")
    function = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get("input_schema"),
    }
    return {"type": "function", "function": function}


MESSAGES = Surface(
    "/v1/messages",
    parse=partial(parse_generation, bound="max_tokens"),
    question=as_chat,
    shape=SHAPE,
    ranked=False,
)
# Counted by the replica, whose answer is exact whatever its template does with the blocks.
COUNT_TOKENS = Surface(
    "/v1/messages/count_tokens",
    kind=Kind.FREE,
    parse=parse_plain,
    question=as_chat,
    shape=replace(SHAPE, usage=no_usage),
    salted=False,
    ranked=False,
)
