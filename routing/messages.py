"""Chat messages and tools as an engine hands them to a chat template. Pure.

A template sees normalised copies, never the client's objects: vLLM keeps the fields named here
and drops the rest, joins text parts with a newline (format "string") or keeps them as parts
("openai"), and turns the arguments of tool calls from text into objects.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import orjson
import xxhash

from core.errors import BadRequest
from routing.weight import PER_FIELD, PER_ITEM

Message = dict[str, Any]

_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "thinking"})
_PART_FIELDS = frozenset({"type", "text", "refusal", "thinking", "closed", "uuid"})
_PLAIN_ROLES = ("user", "assistant", "system")
_PLAIN_FIELDS = 2
# Its value changes with every request of that client; vLLM drops the line (and so keeps the
# prefix cache usable).
_BILLING_LINE = "x-anthropic-billing-header"


class Conversation:
    """Normalised messages; `media` holds a digest of each part that is not text."""

    __slots__ = ("media", "messages")

    def __init__(self, messages: list[Message], media: list[str]) -> None:
        self.messages = messages
        self.media = media

    def __repr__(self) -> str:
        return f"<Conversation of {len(self.messages)}, {len(self.media)} media>"


def plain(messages: object, *, as_parts: bool, limit: int) -> list[Message] | None:
    """As `normalise`, of the shape that nearly all chats have: only roles and texts, in sum of no
    more than the weight `limit` (see `exceeds`). None for all others, whatever is the matter.

    One flat loop, because it is every request's work.
    """
    if type(messages) is not list or not messages:
        return None
    limit -= (PER_ITEM + _PLAIN_FIELDS * PER_FIELD) * len(messages)
    result: list[Message] = []
    try:
        for message in messages:
            if type(message) is not dict or len(message) != _PLAIN_FIELDS:
                return None
            role = message["role"]
            content = message["content"]
            if type(content) is not str or role not in _PLAIN_ROLES:
                return None
            limit -= len(role) + len(content)
            if limit < 0 or (role == "system" and content.startswith(_BILLING_LINE)):
                return None
            # A copy of its own, with the fields in this order.
            kept = [{"type": "text", "text": content}] if as_parts else content
            result.append({"role": role, "content": kept})
    except KeyError:
        return None
    return result


def normalise(messages: object, *, as_parts: bool, developer: bool) -> Conversation:
    """The conversation a template renders.

    `as_parts`: content stays a list of parts. `developer`: the template knows that role,
    otherwise it becomes `system`. Raises BadRequest with `param`.
    """
    if not isinstance(messages, list):
        _refuse("`messages` must be a list", "messages")
    if not messages:
        _refuse("`messages` must hold at least one message", "messages")
    result: list[Message] = []
    media: list[str] = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            _refuse("every message must be an object", f"messages[{index}]")
        role = message.get("role")
        content = message.get("content")
        if (
            not as_parts
            and type(content) is str
            and role in _PLAIN_ROLES
            and len(message) == _PLAIN_FIELDS
        ):
            if role == "system" and content.startswith(_BILLING_LINE):
                content = content.partition("\n")[2]
            result.append({"role": role, "content": content})
            continue
        if not isinstance(role, str):
            _refuse("a message needs a `role`", f"messages[{index}].role")
        result.append(_message(message, role, as_parts, media, index))
    if not developer:
        _fold_developer(result)
    return Conversation(result, media)


def _message(
    message: Message, role: str, as_parts: bool, media: list[str], index: int
) -> dict[str, Any]:
    kept: Message = {"role": role, "content": _content(message, role, as_parts, media, index)}
    if role == "assistant":
        if calls := message.get("tool_calls"):
            kept["tool_calls"] = _tool_calls(calls, index)
        if (reasoning := message.get("reasoning")) is not None:
            kept["reasoning"] = kept["reasoning_content"] = reasoning
    elif role == "tool":
        if "tool_call_id" in message:
            kept["tool_call_id"] = message["tool_call_id"]
        parts = kept["content"]
        if isinstance(parts, list) and all(part["type"] == "text" for part in parts):
            kept["content"] = "\n".join([part["text"] for part in parts])
    elif role == "developer":
        kept["tools"] = message.get("tools")
    for field in ("name", "task"):
        if isinstance(message.get(field), str):
            kept[field] = message[field]
    return kept


def _content(
    message: Message, role: str, as_parts: bool, media: list[str], index: int
) -> str | list[dict[str, Any]]:
    content = message.get("content")
    if content is None:
        content = []
    elif isinstance(content, str):
        content = [content]
    elif not isinstance(content, list):
        _refuse("`content` must be text or a list of parts", f"messages[{index}].content")
    parts: list[dict[str, Any]] = []
    for number, part in enumerate(content):
        where = f"messages[{index}].content[{number}]"
        if isinstance(part, str):
            kept: dict[str, Any] = {"type": "text", "text": part}
        elif not isinstance(part, dict):
            _refuse("a content part must be an object", where)
        else:
            text_or_media = _part(part, media, where)
            if text_or_media is None:
                continue
            kept = text_or_media
        if role == "system" and kept.get("text", "").startswith(_BILLING_LINE):
            rest = kept["text"].partition("\n")[2]
            if not rest:
                continue
            kept["text"] = rest
        parts.append(kept)
    if as_parts:
        return parts
    texts = [
        part.get("name") if part["type"] == "tool_reference" else part.get("text") for part in parts
    ]
    return "\n".join([text for text in texts if text])


def _part(part: dict[str, Any], media: list[str], where: str) -> dict[str, Any] | None:
    kind = part.get("type")
    if kind is None and "text" in part:
        kind = "text"
    if isinstance(kind, str) and kind in _TEXT_PARTS:
        text = part.get(kind if kind in ("refusal", "thinking") else "text")
        if text is None:
            return None
        if not isinstance(text, str):
            _refuse("the text of a content part must be text", where)
        kept = {"type": "text", "text": text}
        if len(part) > 2:
            kept.update((key, part[key]) for key in part if key not in _PART_FIELDS)
        return kept
    if kind == "tool_reference":
        return {"type": "tool_reference", "name": str(part.get("name") or "")}
    if kind is not None and not isinstance(kind, str):
        _refuse("the `type` of a content part must be text", where)
    digest = xxhash.xxh3_128_hexdigest(canonical(part))
    media.append(digest)
    return {"type": kind or "media", "media": digest}


def _tool_calls(calls: object, index: int) -> list[dict[str, Any]]:
    where = f"messages[{index}].tool_calls"
    if not isinstance(calls, list):
        _refuse("`tool_calls` must be a list", where)
    result = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or call.get("type", "function") != "function":
            _refuse("only tool calls of type `function` are supported", where)
        if not isinstance(function.get("name"), str):
            _refuse("a tool call needs the `name` of its function", where)
        result.append({**call, "function": {**function, "arguments": _arguments(function)}})
    return result


def _arguments(function: dict[str, Any]) -> dict[str, Any]:
    """The arguments as an object. Broken ones become empty: the fault lies in the history, and
    refusing it would make the conversation unusable."""
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return {}
    return arguments if isinstance(arguments, dict) else {}


def _fold_developer(messages: list[Message]) -> None:
    """Developer messages as system messages; one that follows a system message joins it."""
    index = 0
    while index < len(messages):
        message = messages[index]
        if message["role"] != "developer":
            index += 1
            continue
        del message["tools"]
        message["role"] = "system"
        previous = messages[index - 1] if index else None
        if previous is None or previous["role"] != "system":
            index += 1
            continue
        previous["content"] = _joined(previous["content"], message["content"])
        del messages[index]


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}" if first and second else first or second
    return [*first, *second]


def dump_tools(tools: object) -> list[dict[str, Any]] | None:
    """Tools as templates see them: declared fields first, `description` and `parameters` always
    there. Raises BadRequest."""
    if tools is None:
        return None
    if not isinstance(tools, list):
        _refuse("`tools` must be a list", "tools")
    result: list[dict[str, Any]] = []
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict):
            _refuse("a tool needs a `function`", f"tools[{index}].function")
        if not isinstance(function.get("name"), str):
            _refuse("a tool's function needs a `name`", f"tools[{index}].function.name")
        dumped = {
            "name": function.get("name"),
            "description": function.get("description"),
            "parameters": function.get("parameters"),
        }
        dumped.update(function)
        whole = {"type": tool.get("type", "function"), "function": dumped}
        whole.update((key, value) for key, value in tool.items() if key not in whole)
        result.append(whole)
    return result


def canonical(value: object) -> bytes:
    """`value` as JSON bytes. Raises BadRequest for what JSON in UTF-8 cannot hold."""
    try:
        return orjson.dumps(value)
    except TypeError as error:
        # orjson's JSONEncodeError: lone surrogates, integers above 64 bits, depth above 254.
        raise BadRequest(f"the request holds text that is not Unicode: {error}") from error


def _refuse(message: str, param: str) -> NoReturn:
    raise BadRequest(message, param=param)
