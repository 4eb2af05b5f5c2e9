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
    return chat


def _add(messages: list[dict[str, Any]], item: Any) -> None:
    """One item more; calls of tools join the assistant's message before them."""
    if not isinstance(item, dict):
        raise BadRequest("an item of `input` must be an object", param="input")
    kind = item.get("type", "message")
    if kind == "message":
        messages.append({"role": item.get("role"), "content": item.get("content")})
    elif kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        last = messages[-1] if messages else {}
        if last.get("role") == "assistant":
            last.setdefault("tool_calls", []).append(call)
        else:
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    elif kind == "function_call_output":
        output = item.get("output")
        content = output if isinstance(output, (str, list)) else str(output)
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})


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
