"""An inference request after its body was understood: what the client asked, and what the
replica will be asked.

The body is parsed once; what is forwarded is that same object written again, so that the
gateway and the replica can never read two different requests (duplicate keys, for one).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from core.errors import BadRequest

# What no configuration can let through, and what one can.
NEVER_FORWARDED = {
    "chat_template": "templates come from the operator only",
    "cache_salt": "the gateway isolates caches by tenant",
    "prompt_embeds": "it steers the engine's internals",
    "input_ids": "what is asked must be what is counted",
    "rid": "the gateway names requests",
}
NOT_FORWARDED = {
    "kv_transfer_params": "it steers the engine's internals",
    "priority": "the gateway decides about priority",
    "vllm_xargs": "it steers the engine's internals",
    # SGLang's (srt/entrypoints/openai/protocol.py of 0.5.23)
    "bootstrap_host": "it steers the engine's internals",
    "bootstrap_port": "it steers the engine's internals",
    "bootstrap_room": "it steers the engine's internals",
    "custom_logit_processor": "it is code",
    "data_parallel_rank": "the gateway chooses where it goes",
    "disagg_prefill_dp_rank": "the gateway chooses where it goes",
    "extra_key": "the gateway isolates caches by tenant",
    "lora_path": "adapters are models of their own",
    "routed_dp_rank": "the gateway chooses where it goes",
    "session_params": "it steers the engine's internals",
}
REFUSED = {**NEVER_FORWARDED, **NOT_FORWARDED}
_LOOKED_AT = frozenset(REFUSED) | {"chat_template_kwargs"}
_TEMPLATE_ARGUMENTS_REFUSED = ("chat_template", "tokenize", "messages", "tools")
_MAX_CHOICES = 128
_USAGE = {"include_usage": True}
_SAFE_DEPTH = 250  # orjson reads 1,024 levels, but writes only about 250
_SHORT = 1024


class Call(msgspec.Struct, frozen=True):
    """`document` is the parsed body; `model` as the client named it. `max_output_tokens` is
    None when the client set no bound, and 0 where nothing is generated; `bound` is the field that
    sets it. `wants_usage`: the client gets usage without the gateway's asking for it. `background`:
    the answer comes before it is made."""

    document: dict[str, Any]
    model: str
    stream: bool
    wants_usage: bool
    max_output_tokens: int | None
    choices: int
    bound: str = "max_tokens"
    background: bool = False

    def upstream_body(
        self, model: str, cache_salt: str, priority: int = 0, *, own_fields: bool = True
    ) -> bytes:
        """The body for a replica that serves `model`, usage reporting switched on. `priority` 0:
        as the engine does by default. `own_fields`: it knows more than OpenAI's API does."""
        document = self.document
        if not own_fields and "request_id" in document:  # which the gateway chose
            document = {key: document[key] for key in document if key != "request_id"}
        document["model"] = model
        if cache_salt:
            document["cache_salt"] = cache_salt
        if priority:
            document["priority"] = priority
        if self.stream and not self.wants_usage:
            options = document.get("stream_options")
            document["stream_options"] = {**options, **_USAGE} if options else _USAGE
        body = orjson.dumps(document)
        # Another model may be asked next, whose replicas know no such fields.
        if cache_salt:
            del document["cache_salt"]
        if priority:
            del document["priority"]
        return body


def parse_call(body: bytes, refused: Mapping[str, str] = REFUSED) -> Call:
    """Understand the body of a completion request. Raises BadRequest naming the field. `refused`
    are the fields of REFUSED that no rule lets through."""
    document = parse_document(body, refused)
    stream = document.get("stream")
    if stream is not True:
        stream = _boolean(document, "stream")
    wants_usage = "stream_options" in document and _wants_usage(document, stream)
    choices = _choices(document) if "n" in document or "best_of" in document else 1
    most = _max_output_tokens(document)
    return Call(document, document["model"], stream, wants_usage, most, choices)


def parse_generation(body: bytes, refused: Mapping[str, str], bound: str) -> Call:
    """As `parse_call`, of an API whose streams always tell of usage and that makes one answer, of
    `bound` tokens at most."""
    document = parse_document(body, refused)
    stream = _boolean(document, "stream")
    most, background = _tokens(document, bound), document.get("background") is True
    return Call(document, document["model"], stream, True, most, 1, bound, background)


def parse_plain(body: bytes, refused: Mapping[str, str]) -> Call:
    """As `parse_call`, where nothing is generated and the answer comes in one piece."""
    document = parse_document(body, refused)
    if _boolean(document, "stream"):
        raise _field("stream", "must be false: this answer comes in one piece")
    return Call(document, document["model"], False, True, 0, 1)


def parse_document(body: bytes, refused: Mapping[str, str]) -> dict[str, Any]:
    """The object in a body that names a model, without what no client may say."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise BadRequest("The body is not valid JSON.", code="invalid_json") from None
    if not isinstance(document, dict):
        raise BadRequest("The body must be a JSON object.", code="invalid_json")
    if _may_be_deep(body):
        _refuse_deep(document)
    model = document.get("model")
    if not isinstance(model, str) or not model:
        raise _field("model", "must be the name of a model")
    if not _LOOKED_AT.isdisjoint(document):
        refuse_fields(document, refused)
        _check_template_arguments(document)
    return document


def _field(name: str, fault: str) -> BadRequest:
    return BadRequest(f"`{name}` {fault}.", param=name)


def _may_be_deep(body: bytes) -> bool:
    """Whether there are brackets enough. In a long body by `find`, which skips text at the speed
    of memory: `count` takes 2 ms of a body of 2 MB, in which nothing else happens."""
    if len(body) < _SHORT:
        return body.count(b"[") + body.count(b"{") > _SAFE_DEPTH
    for bracket in (b"[", b"{"):
        at = -1
        for _ in range(_SAFE_DEPTH // 2):
            at = body.find(bracket, at + 1)
            if at < 0:
                break
        else:
            return True
    return False


def _refuse_deep(document: dict[str, Any]) -> None:
    """Refuse what could not be written again for the replica."""
    try:
        orjson.dumps(document)
    except TypeError:
        raise BadRequest("The body is nested too deeply.", code="invalid_json") from None


def refuse_fields(document: dict[str, Any], refused: Mapping[str, str]) -> None:
    """Raises BadRequest for the first field of `refused`, pairs of a name and the reason. Where its
    value is null, it is taken out."""
    for name, reason in refused.items():
        if document.pop(name, None) is not None:
            raise _field(name, f"is not accepted here: {reason}")


def _check_template_arguments(document: dict[str, Any]) -> None:
    arguments = document.get("chat_template_kwargs")
    if arguments is None:
        return
    if not isinstance(arguments, dict):
        raise _field("chat_template_kwargs", "must be an object")
    for name in _TEMPLATE_ARGUMENTS_REFUSED:
        if name in arguments:
            raise _field(f"chat_template_kwargs.{name}", "is not accepted here")


def _boolean(document: dict[str, Any], name: str) -> bool:
    value = document.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise _field(name, "must be true or false")
    return value


def _wants_usage(document: dict[str, Any], stream: bool) -> bool:
    options = document.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise _field("stream_options", "must be an object")
    if not stream:
        raise _field("stream_options", "is only allowed when `stream` is true")
    return _boolean(options, "include_usage")


def _max_output_tokens(document: dict[str, Any]) -> int | None:
    """`max_completion_tokens` beats `max_tokens`, as in vLLM's chats. Where both are given they
    become the same: other routes and engines read the other one, and that is not what is charged.
    """
    found = None
    for name in ("max_completion_tokens", "max_tokens"):
        if document.get(name) is None:
            continue
        value = _tokens(document, name)
        if found is None:
            found = value
        else:
            document[name] = found
    return found


def _tokens(document: dict[str, Any], name: str) -> int | None:
    value = document.get(name)
    if value is not None and (type(value) is not int or value < 0):
        raise _field(name, "must be a whole number of tokens")
    return value


def _choices(document: dict[str, Any]) -> int:
    most = 1
    for name in ("n", "best_of"):
        value = document.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_CHOICES:
            raise _field(name, f"must be a whole number from 1 to {_MAX_CHOICES}")
        most = max(most, value)
    return most
