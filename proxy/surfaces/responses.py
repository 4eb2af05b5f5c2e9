"""OpenAI's Responses. The body goes to the replica as it is; only for counting and routing it is
read as a chat. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.errors import BadRequest
from proxy.call import Call, parse_generation
from proxy.surfaces.responses_shape import RESPONSES as SHAPE
from proxy.surfaces.surface import Surface


def as_chat(document: dict[str, Any]) -> dict[str, Any]:
    """What the chat template is given: without what a `previous_response_id` stands for, which the
    replica alone knows. Raises BadRequest."""
    messages: list[dict[str, Any]] = []
    if instructions := document.get("instructions"):
        messages.append({"role": "system", "content": instructions})
    given = document.get("input")
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    elif isinstance(given, list):
        for item in given:
            _add(messages, item)
    else:
        raise BadRequest("`input` must be text or a list of items.", param="input")
    chat: dict[str, Any] = {"messages": messages}
    tools = document.get("tools")
    if isinstance(tools, list):
        functions = [_tool(tool) for tool in tools if _is_function(tool)]
        if functions:
            chat["tools"] = functions
    if (arguments := document.get("chat_template_kwargs")) is not None:
        chat["chat_template_kwargs"] = arguments
    reasoning = document.get("reasoning")
    if isinstance(reasoning, dict) and reasoning.get("effort") is not None:
        chat["reasoning_effort"] = reasoning["effort"]
    return chat


def _add(messages: list[dict[str, Any]], item: Any) -> None:
    """One item more, as vLLM takes it: what an assistant thinks, says and calls in a row is one
    message, as far as it does each once."""
    if not isinstance(item, dict):
        raise BadRequest("an item of `input` must be an object", param="input")
    kind = item.get("type", "message")
    if kind == "message":
        role, content = item.get("role"), item.get("content")
        if role == "assistant":
            _say(messages, "content", _first_text(content))
        else:
            messages.append({"role": role, "content": content})
    elif kind == "reasoning":
        text = _first_text(item.get("content")) or _first_text(item.get("summary"))
        _say(messages, "reasoning", text or "")
    elif kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        last = messages[-1] if messages else {}
        if last.get("role") == "assistant":
            last.setdefault("tool_calls", []).append(call)
        else:
            messages.append({"role": "assistant", "tool_calls": [call]})
    elif kind == "function_call_output":
        output = item.get("output")
        content = output if isinstance(output, (str, list)) else str(output)
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})


def _say(messages: list[dict[str, Any]], field: str, text: Any) -> None:
    last = messages[-1] if messages else {}
    if last.get("role") == "assistant" and last.get(field) is None:
        last[field] = text
    else:
        messages.append({"role": "assistant", field: text})


def _first_text(content: Any) -> Any:
    """Of several parts the first one's."""
    if not isinstance(content, list):
        return content
    return content[0].get("text") if content and isinstance(content[0], dict) else None


def _is_function(tool: Any) -> bool:
    return isinstance(tool, dict) and tool.get("type") == "function"


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = {name: tool.get(name) for name in ("name", "description", "parameters")}
    return {"type": "function", "function": function}


def _parse(body: bytes, refused: Mapping[str, str]) -> Call:
    call = parse_generation(body, refused, "max_output_tokens")
    call.document.pop("request_id", None)  # would be the id under which others' are stored
    return call


RESPONSES = Surface("/v1/responses", parse=_parse, question=as_chat, shape=SHAPE, stored=True)
