"""Checks a generation request as vLLM does, and says what to generate. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.replica import dialect, transfer
from loadtest.replica.behaviour import Behaviour
from loadtest.replica.engine import Engine
from loadtest.replica.options import ReplicaOptions
from loadtest.replica.tokens import Speech


class Refused(Exception):
    """The answer is an error: a status and a JSON body."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(status, body)
        self.status = status
        self.body = body


@dataclass(frozen=True, slots=True)
class Generation:
    """What one request asks for. `salt` keeps prefix caches of tenants apart. `hands_over`: the
    prompt is for another replica to go on from; `fetches`: it comes from another one."""

    prompt_ids: Sequence[int]
    output_tokens: int
    finish_reason: str
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    salt: str
    hands_over: bool = False
    fetches: bool = False


def parse_body(body: bytes) -> dict[str, Any]:
    """The JSON object of a request; Refused with vLLM's wording otherwise."""
    try:
        document = json.loads(body)
    except ValueError as error:
        where = f"body.{getattr(error, 'pos', 0)}"
        problem = dialect.invalid_field(where, "json_invalid", "JSON decode error")
        raise Refused(400, problem) from error
    if not isinstance(document, dict):
        raise Refused(400, dialect.invalid_field("body", "dict_type", "Input should be an object"))
    return document


def chosen_rank(engines: Sequence[Engine], wanted: str | None) -> int:
    """The data-parallel rank that the header names, else the one with the least to do. Refused
    when there is no such rank."""
    try:
        rank = int(wanted or "")
    except ValueError:  # as in vLLM, what is no number is ignored
        loads = [len(engine.running) + len(engine.waiting) for engine in engines]
        return loads.index(min(loads))
    if not 0 <= rank < len(engines):
        text = f"data_parallel_rank {rank} is out of range [0, {len(engines)})."
        raise Refused(400, dialect.error(400, text))
    return rank


def parse_generation(
    body: dict[str, Any], chat: bool, options: ReplicaOptions, speech: Speech, behaviour: Behaviour
) -> Generation:
    """Refused for whatever vLLM refuses before it streams: model, lengths, options."""
    model = body.get("model", options.model)
    if model != options.model and model not in options.adapters:
        raise Refused(404, dialect.no_such_model(model, options.model))
    required = "messages" if chat else "prompt"
    if body.get(required) in (None, []):
        raise Refused(400, dialect.invalid_field(f"body.{required}", "missing", "Field required"))
    stream = bool(body.get("stream"))
    wanted = body.get("stream_options") or {}
    if wanted and not stream:
        message = (
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)"
        )
        raise Refused(400, dialect.error(400, message, param="stream_options"))
    prompt_ids = _prompt_ids(body, chat, speech, behaviour, options.engine)
    if len(prompt_ids) >= options.max_model_len:
        exact = not chat and not isinstance(body["prompt"], str)
        raise Refused(400, dialect.too_long(len(prompt_ids), options.max_model_len, exact))
    try:
        fetched = transfer.fetches(body)
    except ValueError as error:
        raise Refused(400, dialect.error(400, str(error))) from error
    output_tokens, finish_reason = _output(body, options, len(prompt_ids), behaviour)
    return Generation(
        prompt_ids,
        output_tokens,
        finish_reason,
        stream,
        include_usage=stream and bool(wanted.get("include_usage")),
        continuous_usage=stream and bool(wanted.get("continuous_usage_stats")),
        return_token_ids=bool(body.get("return_token_ids")),
        salt=("" if model == options.model else model + ":") + str(body.get("cache_salt") or ""),
        hands_over=transfer.hands_over(body),
        fetches=fetched,
    )


def _prompt_ids(
    body: dict[str, Any], chat: bool, speech: Speech, behaviour: Behaviour, engine: str
) -> Sequence[int]:
    params = body.get("kv_transfer_params")
    reused = params.get("prompt_token_ids") if isinstance(params, dict) else None
    if engine == "sglang":
        reused = body.get("input_ids")
    if reused and "ignore_token_ids" not in behaviour:
        return list(reused)
    if chat:
        try:
            return speech.chat_ids(body)
        except (ValueError, KeyError) as error:
            raise Refused(400, dialect.error(400, str(error))) from error
    prompt = body["prompt"]
    if isinstance(prompt, list) and isinstance(prompt[0], (list, str)):
        prompt = prompt[0]  # of a batch only the first is answered
    if isinstance(prompt, str):
        return speech.encode(prompt, add_special_tokens=body.get("add_special_tokens", True))
    return [int(token) for token in prompt]


def _output(
    body: dict[str, Any], options: ReplicaOptions, prompt: int, behaviour: Behaviour
) -> tuple[int, str]:
    """How many tokens, and why they end: `length` when the request set the number."""
    room = options.max_model_len - prompt
    if "tokens" in behaviour:
        return max(1, int(behaviour["tokens"])), "stop"
    limit = body.get("max_completion_tokens", body.get("max_tokens"))
    if limit is None:
        return min(options.output_tokens, room), "stop"
    if not isinstance(limit, int) or limit < 1:
        message = f"max_tokens must be at least 1, got {limit}. (parameter=max_tokens)"
        raise Refused(400, dialect.error(400, message, param="max_tokens"))
    if limit > options.max_model_len:
        message = (
            f"max_tokens={limit} cannot be greater than max_model_len={options.max_model_len}. "
            f"Please request fewer output tokens. (parameter=max_tokens, value={limit})"
        )
        raise Refused(400, dialect.error(400, message, param="max_tokens"))
    return min(limit, room), "length"
