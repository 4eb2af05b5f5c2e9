"""Routes whose answer is one JSON object and is not generated: embeddings, scores, tokens. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from proxy.call import parse_plain
from proxy.surfaces.openai import OPENAI
from proxy.surfaces.surface import Kind, Surface

_TEXTS = ("input", "query", "documents", "queries", "text_1", "text_2", "data_1", "data_2")
_OF_TEXT = (None, "text", "input_text", "output_text")
_CHAT = ("messages", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")
_PASSED = ("add_special_tokens", "truncate_prompt_tokens")


def as_text(document: dict[str, Any]) -> dict[str, Any]:
    """Everything that the model reads: a batch of prompts, or a chat, which it is also where there
    is more than text (the prompter knows whether the model takes that)."""
    if "messages" in document:
        return {name: document[name] for name in _CHAT if name in document}
    texts: list[Any] = []
    media: list[Any] = []
    for name in _TEXTS:
        texts += _texts(document.get(name), media)
    if media:
        return {"messages": [{"role": "user", "content": media}]}
    if not texts or len({type(text) for text in texts}) > 1:
        texts = [text for text in texts if isinstance(text, str)] or [""]
    question: dict[str, Any] = {"prompt": texts}
    question.update((name, document[name]) for name in _PASSED if name in document)
    return question


def _texts(value: Any, media: list[Any]) -> list[Any]:
    """The texts, or lists of token ids, in `value`. What is neither goes to `media`."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        if value.get("type") in _OF_TEXT and ("text" in value or "content" in value):
            return _texts(value["text"] if "text" in value else value["content"], media)
        media.append(value)
    if not isinstance(value, list) or not value:
        return []
    if all(type(text) is str for text in value):
        return value
    if all(type(number) is int for number in value):
        return [value]
    found: list[Any] = []
    for one in value:
        found += _texts(one, media)
    return found


def as_chat(document: dict[str, Any]) -> dict[str, Any]:
    """The chat in it, if it is one."""
    return as_text(document) if "messages" in document else {}


def pooled_usage(usage: dict[str, Any] | None) -> dict[str, Any] | None:
    """Nothing was generated; some routes tell of the total alone."""
    if usage is None:
        return None
    prompt = usage.get("prompt_tokens")
    return {
        "prompt_tokens": usage.get("total_tokens") if prompt is None else prompt,
        "completion_tokens": 0,
    }


def no_usage(usage: dict[str, Any] | None) -> dict[str, Any]:
    return {"prompt_tokens": 0, "completion_tokens": 0}


_POOLED = replace(OPENAI, usage=pooled_usage)
_FREE = replace(OPENAI, usage=no_usage)

POOLED = tuple(
    Surface(path, Kind.TEXT, parse_plain, as_text, _POOLED, salted=False, ranked=False)
    for path in (
        "/v1/embeddings",
        "/v1/rerank",
        "/rerank",
        "/v2/rerank",
        "/v1/score",
        "/score",
        "/classify",
        "/pooling",
    )
)
TOKENS = tuple(
    Surface(path, Kind.FREE, parse_plain, as_chat, _FREE, salted=False, ranked=False)
    for path in ("/tokenize", "/detokenize")
)
