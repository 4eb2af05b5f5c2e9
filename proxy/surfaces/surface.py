"""What one path of the API is, as the pipeline needs to know it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from proxy.call import Call, parse_call
from proxy.surfaces.openai import OPENAI
from proxy.surfaces.shape import Shape


class Kind(Enum):
    """How the prompt is made: by the chat template, of text or token ids as they are, or not at
    all, where the engine's model has nothing to do."""

    CHAT = "chat"
    TEXT = "text"
    FREE = "free"


Parse = Callable[[bytes, Mapping[str, str]], Call]


@dataclass(frozen=True, slots=True)
class Surface:
    """`parse` makes a `Call` of a body. `question` makes of the body what the prompter of this kind
    reads (None: the body is that already); it looks no closer than it must, as the engine judges
    the body itself. `salted`: the body may have `cache_salt`; `ranked`: and `priority`.
    `empty_role`: a stream begins with an event without content for each choice.
    `stored`: an answer can be asked for again, by its id."""

    path: str
    kind: Kind = Kind.CHAT
    parse: Parse = parse_call
    question: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    shape: Shape = OPENAI
    salted: bool = True
    ranked: bool = True
    empty_role: bool = False
    stored: bool = False
    upstream_path: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "upstream_path", self.path.encode("ascii"))
