"""OpenAI's Responses as vLLM 0.32 words them: numbered events with types. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from loadtest.replica import dialect
from loadtest.replica.dialect import compact


def as_chat(body: dict[str, Any]) -> dict[str, Any]:
    """The chat request that stands for a body of Responses."""
    messages = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given or ()
    for item in items:
        messages.append({"role": item["role"], "content": _text(item["content"])})
    chat: dict[str, Any] = {
        name: body[name] for name in ("model", "stream", "cache_salt") if name in body
    }
    if body.get("max_output_tokens") is not None:
        chat["max_tokens"] = body["max_output_tokens"]
    return {**chat, "messages": messages}


class ResponseWording:
    """How one answer reads; the same calls as `dialect.Wording`. `final`: the whole response once
    it is complete, for who asks for it later."""

    plain = False  # each event has its number

    def __init__(self, response_id: str, created: int, model: str, prompt: Sequence[int]) -> None:
        self.response_id = response_id
        self.prompt_ids = prompt
        self.final: dict[str, Any] | None = None
        self._item = "msg_" + response_id.removeprefix("resp_")
        self._number = -1
        self._response: dict[str, Any] = {
            "id": response_id,
            "created_at": created,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": None,
            "model": model,
            "object": "response",
            "output": [],
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "none",
            "tools": [],
            "top_p": 1.0,
            "status": "in_progress",
            "usage": None,
        }

    def __repr__(self) -> str:
        return f"<ResponseWording {self.response_id}>"

    def opening(self) -> list[bytes]:
        item = {
            "id": self._item,
            "content": [],
            "role": "assistant",
            "status": "in_progress",
            "type": "message",
        }
        return [
            self._event("response.created", {"response": self._response}),
            self._event("response.in_progress", {"response": self._response}),
            self._event("response.output_item.added", {"item": item, "output_index": 0}),
            self._event("response.content_part.added", {**self._place(), "part": _part("")}),
        ]

    def halves(self) -> tuple[bytes, bytes]:
        before, _, after = self._delta("\0").partition(b"\\u0000")
        return before, after

    def token_event(
        self, text: str, token: int, sent: int, finish_reason: str | None, sent_at_ns: int
    ) -> bytes:
        return self._delta(text)

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
        said = text()
        final = self._finished(said, sent, cached, reason, usage=usage)
        events = [
            self._event("response.output_text.done", {**self._place(), "text": said}),
            self._event("response.content_part.done", {**self._place(), "part": _part(said)}),
            self._event(
                "response.output_item.done", {"item": final["output"][0], "output_index": 0}
            ),
        ]
        if end:
            events.append(self._event("response.completed", {"response": final}))
        return events

    def failure(self, code: int) -> list[bytes]:
        error = {"code": "server_error", "message": dialect.error(code)["error"]["message"]}
        if code == 503:
            error["code"] = "server_is_overloaded"
        failed = {**self._response, "status": "failed", "error": error}
        return [self._event("response.failed", {"response": failed})]

    def error_body(self, code: int) -> dict[str, Any]:
        return dialect.error(code)

    def document(
        self, text: str, output_ids: Sequence[int], cached: int, finish_reason: str
    ) -> bytes:
        return compact(self._finished(text, len(output_ids), cached, finish_reason)).encode()

    def _finished(
        self, text: str, sent: int, cached: int, reason: str, *, usage: bool = True
    ) -> dict[str, Any]:
        item = {
            "id": self._item,
            "content": [_part(text)],
            "role": "assistant",
            "status": "completed",
            "type": "message",
        }
        prompt = len(self.prompt_ids)
        counts = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": sent,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + sent,
        }
        cut = reason == "length"
        self.final = {
            **self._response,
            "output": [item],
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": counts if usage else None,
        }
        return self.final

    def _place(self) -> dict[str, Any]:
        return {"content_index": 0, "item_id": self._item, "output_index": 0}

    def _delta(self, text: str) -> bytes:
        return self._event(
            "response.output_text.delta", {**self._place(), "delta": text, "logprobs": []}
        )

    def _event(self, kind: str, members: dict[str, Any]) -> bytes:
        self._number += 1
        document = {**members, "sequence_number": self._number, "type": kind}
        return f"event: {kind}\ndata: {compact(document)}\n\n".encode()


def _part(text: str) -> dict[str, Any]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": []}


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join([str(part.get("text") or "") for part in content])
