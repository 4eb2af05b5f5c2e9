"""From a request body to token ids, and from token ids to the words of the answer. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fastokens
import jinja2
import jinja2.sandbox
import tokenizers


def _fail(message: str) -> None:
    raise jinja2.TemplateError(message)


class Speech:
    """One model's tokenizer and chat template, and the answers it gives.

    Encoding is fastokens' where it knows the tokenizer (the ids are those of `tokenizers`, at a
    fraction of the time), else `tokenizers` itself. Answers are whole lower-case words that are
    one token each, so the text of an answer encodes to as many tokens as were sent.
    """

    def __init__(self, tokenizer: Path, chat_template: Path) -> None:
        reference = tokenizers.Tokenizer.from_file(str(tokenizer))
        self._encode = self._encoder(tokenizer, reference)
        self._decode = reference.decode
        words = sorted(
            (number, piece)
            for piece, number in reference.get_vocab().items()
            if piece[0] == "Ġ" and len(piece) > 3 and _is_word(piece[1:])
        )
        self._words = {number: f" {piece[1:]}" for number, piece in words[:4096]}
        self._ids = list(self._words)
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
        environment.globals["raise_exception"] = _fail
        self._template = environment.from_string(chat_template.read_text())

    def __repr__(self) -> str:
        return f"<Speech {len(self._ids)} words>"

    @staticmethod
    def _encoder(path: Path, reference: tokenizers.Tokenizer) -> Any:
        try:
            fast = fastokens.Tokenizer.from_file(str(path))
        except (ValueError, RuntimeError, NotImplementedError):
            return reference.encode
        return fast.encode

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(self._encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return self._decode(list(ids))

    def chat_ids(self, body: dict[str, Any]) -> list[int]:
        """The prompt of a chat body; ValueError when the template refuses it."""
        try:
            text = self._template.render(
                messages=[_normalised(message) for message in body["messages"]],
                tools=body.get("tools"),
                documents=None,
                add_generation_prompt=body.get("add_generation_prompt", True),
                **(body.get("chat_template_kwargs") or {}),
            )
        except (jinja2.TemplateError, TypeError, AttributeError) as error:
            raise ValueError(str(error)) from error
        return self.encode(text)

    def answer_ids(self, prompt_ids: Sequence[int], count: int) -> list[int]:
        """`count` ids that depend on the prompt alone."""
        known = self._ids
        state = hash(tuple(prompt_ids)) & 0xFFFFFFFF
        ids = []
        for _ in range(count):
            state = (state * 1_664_525 + 1_013_904_223) & 0xFFFFFFFF
            ids.append(known[(state >> 16) % len(known)])
        return ids

    def text(self, token: int) -> str:
        """An answer token as text: one blank and one word, safe inside a JSON string."""
        return self._words[token]


def _is_word(text: str) -> bool:
    return text.isascii() and text.isalpha() and text.islower()


def _normalised(message: dict[str, Any]) -> dict[str, Any]:
    """A message as vLLM hands it to the template: no content is "", arguments are objects."""
    message = {**message, "content": message.get("content") or ""}
    calls = message.get("tool_calls")
    if not calls:
        message.pop("tool_calls", None)
        return message
    message["tool_calls"] = [
        {**call, "function": {**call["function"], "arguments": _arguments(call["function"])}}
        for call in calls
    ]
    return message


def _arguments(function: dict[str, Any]) -> Any:
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        return json.loads(arguments)
    except ValueError:
        return {}
