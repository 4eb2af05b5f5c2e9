"""Tokenizers and chat templates by the files they were made from, so that each is made once.

Models that share a file share its memory, and so do configurations that follow each other while the
file stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

from core.identity import identity
from core.section import FilePath
from routing.config import ModelConfig
from routing.template import ChatTemplate, load_template
from routing.tokenizer import Tokenizer, load_tokenizer

T = TypeVar("T")


class Library:
    """`previous` lends what it has of what is asked for again; the rest goes with it."""

    def __init__(self, previous: Library | None = None) -> None:
        self._previous = previous
        self._made: dict[Hashable, object] = {}

    def __repr__(self) -> str:
        return f"<Library of {len(self._made)}>"

    def tokenizer(self, path: FilePath) -> Tokenizer:
        """Raises ConfigError."""
        return self._get(("tokenizer", identity(path)), lambda: load_tokenizer(path))

    def template(self, config: ModelConfig) -> ChatTemplate | None:
        """Raises ConfigError."""
        settings = (
            *(config.chat_template, config.template_engine, config.content_format),
            *(config.bos_token, config.eos_token, config.chat_template_kwargs),
        )
        return self._get(("template", identity(settings)), lambda: load_template(config))

    def complete(self) -> None:
        """Nothing more will be asked for: let go of `previous`."""
        self._previous = None

    def _get(self, key: Hashable, make: Callable[[], T]) -> T:
        if key not in self._made:
            lent = {} if self._previous is None else self._previous._made
            self._made[key] = lent[key] if key in lent else make()
        return self._made[key]  # type: ignore[return-value]
