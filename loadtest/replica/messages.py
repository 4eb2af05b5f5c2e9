"""Anthropic's Messages as vLLM 0.32 words them: typed events, errors of another shape. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.replica import dialect
from loadtest.replica.dialect import compact

_REASONS = {"stop": "end_turn", "length": "max_tokens"}


def as_chat(body: dict[str, Any]) -> dict[str, Any]:
    """The chat request that stands for a body of Messages."""
    messages = []
    if body.get("system"):
        messages.append({"role": "system", "content": _text(body["system"])})
    for message in body.get("messages") or ():
        messages.append({"role": message["role"], "content": _text(message["content"])})
    kept = ("model", "max_tokens", "stream", "cache_salt")
    chat: dict[str, Any] = {name: body[name] for name in kept if name in body}
    return {**chat, "messages": messages}


def refusal(body: dict[str, Any]) -> dict[str, Any]:
    """An error body in Anthropic's shape."""
    error = body["error"]
    return {"type": "error", "error": {"type": error["type"], "message": error["message"]}}


def event(document: dict[str, Any]) -> bytes:
    return f"event: {document['type']}\ndata: {compact(document)}\n\n".encode()


@dataclass(frozen=True, slots=True)
class MessageWording:
    """How one answer reads; the same calls as `dialect.Wording`."""

    response_id: str
    model: str
    prompt_ids: Sequence[int]

    @property
    def plain(self) -> bool:
        return True

    def opening(self) -> list[bytes]:
        usage = {"input_tokens": len(self.prompt_ids), "output_tokens": 0}
        message: dict[str, Any] = {
            "id": self.response_id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        block = {"type": "text", "text": ""}
        return [
            event({"type": "message_start", "message": message}),
            event({"type": "content_block_start", "content_block": block, "index": 0}),
        ]

    def halves(self) -> tuple[bytes, bytes]:
        before = (
            'event: content_block_delta\ndata: {"type":"content_block_delta",'
            '"delta":{"type":"text_delta","text":"'
        )
        return before.encode(), b'"},"index":0}\n\n'

    def token_event(
        self, text: str, token: int, sent: int, finish_reason: str | None, sent_at_ns: int
    ) -> bytes:
        before, after = self.halves()
        return before + text.encode() + after

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
        delta: dict[str, Any] = {
            "type": "message_delta",
            "delta": {"stop_reason": _REASONS.get(reason, reason), "stop_sequence": None},
        }
        if usage:
            delta["usage"] = self._usage(sent, cached)
        events = [event({"type": "content_block_stop", "index": 0}), event(delta)]
        return [*events, event({"type": "message_stop"})] if end else events

    def failure(self, code: int) -> list[bytes]:
        return [b"event: error\ndata: " + json.dumps(self.error_body(code)).encode() + b"\n\n"]

    def error_body(self, code: int) -> dict[str, Any]:
        return refusal(dialect.error(code))

    def document(
        self, text: str, output_ids: Sequence[int], cached: int, finish_reason: str
    ) -> bytes:
        answer = {
            "id": self.response_id,
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": text}],
            "model": self.model,
            "stop_reason": _REASONS.get(finish_reason, finish_reason),
            "usage": self._usage(len(output_ids), cached),
        }
        return compact(answer).encode()

    def _usage(self, sent: int, cached: int) -> dict[str, int]:
        return {
            "input_tokens": len(self.prompt_ids) - cached,
            "output_tokens": sent,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
        }


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join([str(block.get("text") or block.get("content") or "") for block in content])
