"""The base of every configuration section, and the value types that sections share.

`core/loading.py` turns a document into a tree of sections. A value type is made from text by a
class method `from_text(text, base)`, which raises ValueError with one sentence; `base` is the
folder that relative paths start at.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import ClassVar, Self, dataclass_transform

import msgspec

from core.errors import ConfigError

_SECRET_FORM = "a reference to a secret, `file:PATH` or `env:NAME` (never the secret itself)"


# Type checkers do not see that subclasses inherit `frozen` and `kw_only`; this tells them.
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A strict, immutable piece of the configuration.

    A `__post_init__` that finds contradicting values raises ValueError with one clear sentence
    (or `Contradictions` with several); the loader puts the path of the section before it.
    """


class Contradictions(ValueError):
    """Several faults at once: pairs of a path below the section (`.replicas[2].model`, or empty
    for the section itself) and a sentence."""

    def __init__(self, faults: Sequence[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{path}: {sentence}" for path, sentence in faults))
        self.faults = tuple(faults)


SHORTEST_SECRET = 32
"""Characters, where keys are derived from a secret."""


class Secret:
    """A reference to a secret, `file:PATH` or `env:NAME`; never the secret itself.

    Read anew at every `reveal`, so that a rotated file is seen. Nothing shows the secret.
    """

    __slots__ = ("_reference",)
    expected: ClassVar[str] = _SECRET_FORM
    schema: ClassVar[dict[str, object]] = {"type": "string", "pattern": "^(file|env):.+"}

    def __init__(self, reference: str) -> None:
        kind, _, name = reference.partition(":")
        if kind not in ("file", "env") or not name:
            # The text is not repeated: it may be the secret.
            raise ValueError(f"expected {_SECRET_FORM}")
        self._reference = reference

    @classmethod
    def from_text(cls, text: str, base: str) -> Self:
        if text.startswith("file:") and len(text) > 5:
            return cls("file:" + os.path.normpath(os.path.join(base, text[5:])))
        return cls(text)

    @property
    def path(self) -> str | None:
        """The file that it is in, if it is in one."""
        kind, _, name = self._reference.partition(":")
        return name if kind == "file" else None

    def reveal(self) -> str:
        """The secret, without one trailing newline. Raises ConfigError when it cannot be read."""
        kind, _, name = self._reference.partition(":")
        if kind == "env":
            value = os.environ.get(name)
            if not value:
                fault = "is empty" if value == "" else "is not set"
                raise ConfigError(f"the environment variable {name}, meant as a secret, {fault}")
            return value
        try:
            with open(name, encoding="utf-8") as file:
                value = file.read()
        except OSError as error:
            raise ConfigError(f"cannot read the secret file {name}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"the secret file {name} is not UTF-8 text") from error
        value = value.removesuffix("\n").removesuffix("\r")
        if not value:
            raise ConfigError(f"the secret file {name} is empty")
        return value

    def reveal_strong(self) -> str:
        """As `reveal`, for what other keys are derived from. Raises ConfigError also for a secret
        that could be guessed."""
        value = self.reveal()
        if len(value) < SHORTEST_SECRET:
            raise ConfigError(
                f"the secret has {len(value)} characters; give at least {SHORTEST_SECRET} random "
                "ones, as `openssl rand -hex 32` prints"
            )
        return value

    def __repr__(self) -> str:
        return f"Secret({self._reference!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._reference == self._reference

    def __hash__(self) -> int:
        return hash(self._reference)


class FilePath(str):
    """A path in the configuration, absolute: relative ones start at the configuration file.

    `headrace check` reports one that is not there. For a file that is yet to be written, use
    `OutputPath`.
    """

    __slots__ = ()
    expected: ClassVar[str] = "a path"
    schema: ClassVar[dict[str, object]] = {"type": "string", "minLength": 1}

    @classmethod
    def from_text(cls, text: str, base: str) -> Self:
        if not text or "\0" in text:
            raise ValueError("expected a path, got empty text or a null byte")
        return cls(os.path.normpath(os.path.join(base, text)))


class OutputPath(FilePath):
    """As `FilePath`, of a file that need not exist."""

    __slots__ = ()
