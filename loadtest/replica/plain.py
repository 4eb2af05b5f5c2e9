"""Answers that are one JSON object and not generated: embeddings, scores, tokens. Pure.

The engine has one token to do for each, so that whatever befalls a generation befalls these too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.replica import dialect
from loadtest.replica.dialect import compact

DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class PlainWording:
    """The answer is known when the request is; `dialect.Wording` has the same calls."""

    response_id: str
    answer: dict[str, Any]
    refusal: Callable[[dict[str, Any]], dict[str, Any]]

    @property
    def plain(self) -> bool:
        return True

    def opening(self) -> list[bytes]:
        return []

    def halves(self) -> tuple[bytes, bytes]:
        return b"", b""

    def token_event(
        self, text: str, token: int, sent: int, finish_reason: str | None, sent_at_ns: int
    ) -> bytes:
        return b""

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
        return []

    def failure(self, code: int) -> list[bytes]:
        return []

    def error_body(self, code: int) -> dict[str, Any]:
        return self.refusal(dialect.error(code))

    def document(
        self, text: str, output_ids: Sequence[int], cached: int, finish_reason: str
    ) -> bytes:
        return compact(self.answer).encode()


def texts_of(body: dict[str, Any]) -> list[Any]:
    """What a pooling model reads."""
    found: list[Any] = []
    for name in ("input", "query", "documents", "text_1", "text_2", "queries"):
        value = body.get(name)
        if isinstance(value, list) and not (value and isinstance(value[0], int)):
            found += value
        elif value is not None:
            found.append(value)
    return found


def pooled(path: str, model: str, texts: int, tokens: int, created: int) -> dict[str, Any]:
    """vLLM's answer of one of the pooling routes."""
    usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
    whole = {"object": "list", "created": created, "model": model}
    if path.endswith("/embeddings") or path == "/pooling":
        vector = [round(1 / (index + 2), 4) for index in range(DIMENSIONS)]
        rows = [
            {"index": n, "object": "embedding", "embedding": vector} for n in range(max(1, texts))
        ]
        return {"id": f"embd-{created}", **whole, "data": rows, "usage": usage}
    if path.endswith("/rerank"):
        results = [
            {"index": n, "document": {"text": ""}, "relevance_score": 1 / (n + 1)}
            for n in range(max(1, texts - 1))
        ]
        return {"id": f"score-{created}", "model": model, "results": results, "usage": usage}
    if path == "/classify":
        rows = [{"index": n, "label": "A", "probs": [0.5, 0.5]} for n in range(max(1, texts))]
        return {"id": f"classify-{created}", **whole, "data": rows, "usage": usage}
    rows = [{"index": n, "object": "score", "score": 0.5} for n in range(max(1, texts - 1))]
    return {"id": f"score-{created}", **whole, "data": rows, "usage": usage}
