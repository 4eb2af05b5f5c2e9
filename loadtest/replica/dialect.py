"""The bytes of vLLM 0.32's OpenAI server: heads, events, JSON answers and errors. Pure.

Key order and spacing are the server's own (seen in captures of a real one): events are compact
JSON without escapes for non-ASCII, mid-stream errors have blanks after colons and commas, one event
is one chunk.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

FINGERPRINT = "vllm-0.32.0-37689081"
VERSION = "0.32.0"
LAST_CHUNK = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"
EVENT_STREAM = b"text/event-stream; charset=utf-8"

_OVERLOADED = (
    "The engine is currently busy and cannot accept new requests. "
    "Please try again later or on a different instance."
)
_CRASHED = "EngineCore encountered an issue. See stack trace (above) for the root cause."
_ERRORS = {
    400: ("BadRequestError", "The request is not acceptable."),
    429: ("RateLimitError", "Too many requests."),
    500: ("InternalServerError", _CRASHED),
    503: ("Service Unavailable", _OVERLOADED),
}


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def head(
    status: int, content_type: bytes = b"", length: int | None = None, date: str = ""
) -> bytes:
    """A response head as uvicorn writes it; no length = chunked."""
    lines = [
        b"HTTP/1.1 %d %b" % (status, HTTPStatus(status).phrase.encode()),
        b"date: " + date.encode(),
        b"server: uvicorn",
    ]
    if length is not None:
        lines.append(b"content-length: %d" % length)
    if content_type:
        lines.append(b"content-type: " + content_type)
    lines.append(b"vary: Origin")
    if length is None:
        lines.append(b"transfer-encoding: chunked")
    return b"\r\n".join(lines) + b"\r\n\r\n"


def error(code: int, message: str = "", kind: str = "", param: str | None = None) -> dict[str, Any]:
    """vLLM's error object; the usual words for `code` where none are given."""
    known_kind, known_message = _ERRORS.get(code, ("InternalServerError", _CRASHED))
    return {
        "error": {
            "message": message or known_message,
            "type": kind or known_kind,
            "param": param,
            "code": code,
        }
    }


def error_event(code: int) -> bytes:
    return b"data: " + json.dumps(error(code)).encode() + b"\n\n"


def invalid_field(where: str, kind: str, problem: str) -> dict[str, Any]:
    """A FastAPI validation error as vLLM words it."""
    text = f"1 validation error:\n  {{'type': '{kind}', 'loc': '{where}', 'msg': '{problem}'}}"
    return error(400, text, "Bad Request", where)


def no_such_model(model: object, served: str) -> dict[str, Any]:
    message = f"The model `{model}` does not exist. Valid aliases: {served}."
    return error(404, message, "NotFoundError", "model")


def too_long(count: int, limit: int, exact: bool) -> dict[str, Any]:
    tokens = f"{count}" if exact else f"at least {count}"
    message = (
        f"This model's maximum context length is {limit} tokens. However, your prompt contains "
        f"{tokens} input tokens, which exceeds this limit even without any output tokens. Please "
        f"reduce the length of the input prompt. (parameter=input_tokens, value={count})"
    )
    return error(400, message, param="input_tokens")


def model_card(model: str, max_model_len: int, created: int) -> dict[str, Any]:
    permission = {
        "id": f"modelperm-{created:016x}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    card = {
        "id": model,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": model,
        "parent": None,
        "max_model_len": max_model_len,
        "permission": [permission],
    }
    return {"object": "list", "data": [card]}


@dataclass(frozen=True, slots=True)
class Wording:
    """How the events of one answer read; what does not change is joined once.

    continuous: usage in every event; token_ids: ids in every event; transfer: where the blocks of
    the prompt are to be fetched.
    """

    chat: bool
    response_id: str
    created: int
    model: str
    prompt_ids: Sequence[int]
    include_usage: bool = False
    continuous: bool = False
    token_ids: bool = False
    stamp: bool = False
    transfer: dict[str, Any] | None = None

    def _opening(self) -> str:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return (
            f'data: {{"id":{compact(self.response_id)},"object":"{kind}",'
            f'"created":{self.created},"model":{compact(self.model)},"choices":['
        )

    def _continuous(self, sent: int) -> str:
        if not self.continuous:
            return ""
        prompt = len(self.prompt_ids)
        return (
            f',"usage":{{"prompt_tokens":{prompt},"total_tokens":{prompt + sent},'
            f'"completion_tokens":{sent},"completion_tokens_details":null}}'
        )

    def role_event(self) -> bytes:
        """The first chat event: a role, no content."""
        ids = compact(list(self.prompt_ids)) if self.token_ids else "null"
        return (
            f'{self._opening()}{{"index":0,"delta":{{"role":"assistant","content":""}},'
            f'"logprobs":null,"finish_reason":null}}]{self._continuous(0)},'
            f'"prompt_token_ids":{ids},"prompt_text":null}}\n\n'
        ).encode()

    def opening(self) -> list[bytes]:
        return [self.role_event()] if self.chat else []

    def closing(
        self,
        text: Callable[[], str],
        sent: int,
        cached: int,
        reason: str,
        *,
        usage: bool,
        end: bool,
    ) -> list[bytes]:
        """What follows the last token: `usage` if it was asked for, `end` the terminator."""
        events = [self.usage_event(sent, cached)] if usage and self.include_usage else []
        return [*events, DONE] if end else events

    def failure(self, code: int) -> list[bytes]:
        return [error_event(code), DONE]

    def error_body(self, code: int) -> dict[str, Any]:
        return error(code)

    def halves(self) -> tuple[bytes, bytes]:
        """What stands before and after the text of an ordinary token event (plain wording only)."""
        if self.chat:
            before = self._opening() + '{"index":0,"delta":{"content":"'
            after = '"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
        else:
            before = self._opening() + '{"index":0,"text":"'
            after = (
                '","logprobs":null,"finish_reason":null,"stop_reason":null,'
                '"prompt_token_ids":null,"token_ids":null}]}\n\n'
            )
        return before.encode(), after.encode()

    @property
    def plain(self) -> bool:
        """Whether `halves` says it all."""
        return not (self.continuous or self.token_ids or self.stamp)

    def token_event(
        self, text: str, token: int, sent: int, finish_reason: str | None, sent_at_ns: int
    ) -> bytes:
        """The event of the `sent`th token; the last one carries the finish reason."""
        said = compact(text)
        ids = f"[{token}]" if self.token_ids else "null"
        finish = compact(finish_reason)
        if self.chat:
            stop = ',"stop_reason":null' if finish_reason else ""
            choice = (
                f'{{"index":0,"delta":{{"content":{said}}},"logprobs":null,'
                f'"finish_reason":{finish}{stop},"token_ids":{ids}}}]'
            )
        else:
            first = compact(list(self.prompt_ids)) if self.token_ids and sent == 1 else "null"
            choice = (
                f'{{"index":0,"text":{said},"logprobs":null,"finish_reason":{finish},'
                f'"stop_reason":null,"prompt_token_ids":{first},"token_ids":{ids}}}]'
            )
        tail = f',"sent_at_ns":{sent_at_ns}' if self.stamp else ""
        if finish_reason and not self.include_usage:
            tail += f',"system_fingerprint":"{FINGERPRINT}"'
        return f"{self._opening()}{choice}{self._continuous(sent)}{tail}}}\n\n".encode()

    def usage_event(self, sent: int, cached: int) -> bytes:
        """`choices` is empty: the event a client gets when it asked for usage."""
        prompt = len(self.prompt_ids)
        created = ',"created_cache_tokens":0' if self.chat else ""
        return (
            f'{self._opening()}],"usage":{{"prompt_tokens":{prompt},'
            f'"total_tokens":{prompt + sent},"completion_tokens":{sent},'
            f'"prompt_tokens_details":{{"cached_tokens":{cached}{created}}}}},'
            f'"system_fingerprint":"{FINGERPRINT}"}}\n\n'
        ).encode()

    def document(
        self, text: str, output_ids: Sequence[int], cached: int, finish_reason: str
    ) -> bytes:
        """The whole answer of a request without `stream`."""
        prompt, sent = len(self.prompt_ids), len(output_ids)
        ids = list(output_ids) if self.token_ids else None
        prompt_ids = list(self.prompt_ids) if self.token_ids else None
        choice: dict[str, Any] = {"index": 0}
        if self.chat:
            choice["message"] = {"role": "assistant", "content": text}
            choice["message"] |= dict.fromkeys(
                ("refusal", "annotations", "audio", "function_call", "reasoning")
            )
        else:
            choice["text"] = text
        choice |= {"logprobs": None, "finish_reason": finish_reason, "stop_reason": None}
        choice["token_ids"] = ids
        if not self.chat:
            choice |= {"prompt_logprobs": None, "prompt_token_ids": prompt_ids}
        choice["routed_experts"] = None
        details = {"cached_tokens": cached, "created_cache_tokens": None, "multimodal_tokens": None}
        answer: dict[str, Any] = {
            "id": self.response_id,
            "object": "chat.completion" if self.chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": {
                "prompt_tokens": prompt,
                "total_tokens": prompt + sent,
                "completion_tokens": sent,
                "prompt_tokens_details": details,
                "completion_tokens_details": None,
            },
        }
        if self.chat:
            answer |= {"prompt_logprobs": None, "prompt_token_ids": prompt_ids, "prompt_text": None}
        answer |= {"kv_transfer_params": self.transfer, "ec_transfer_params": None}
        return compact(answer).encode()
