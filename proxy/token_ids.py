"""Hands the ids of a prompt's tokens to replicas that take them, so that they are made once. Pure.

The rest of the request goes along as it is: a replica that ignores the ids answers the same. Who
takes them is decided for each try, as another replica may be different.
"""

from __future__ import annotations

import array
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import orjson

from core.metrics import Metrics
from core.prompt import Prompt

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
_OWN_WAY = frozenset(
    {
        "add_special_tokens",
        "documents",
        "echo",
        "input_ids",
        "kv_transfer_params",
        "media_io_kwargs",
        "mm_processor_kwargs",
        "prompt_embeds",
        "reasoning_effort",
        "suffix",
        "truncate_prompt_tokens",
        "truncation_side",
    }
)
"""With any of these a replica needs the text, or may make of it what another version does not."""


class Accepted(Protocol):
    """What a replica takes: see `backend/token_ids.py`."""

    @property
    def chat(self) -> str | None: ...

    @property
    def completion(self) -> bool: ...


class Sent(Protocol):
    """What of a delivery is needed. `ids`: None where it must go as it is."""

    path: bytes
    body: bytes
    ids: bytes | None


def ids_of(path: str, document: Mapping[str, Any], prompt: Prompt) -> bytes | None:
    """The ids that may stand for what `document` asks, if they are exactly what a replica would
    make of it."""
    ids = prompt.ids
    if ids is None or not _OWN_WAY.isdisjoint(document):
        return None
    if path == CHAT:
        # vLLM renders the tools then or not, by an option that nobody sees.
        return None if document.get("tools") and document.get("tool_choice") == "none" else ids
    return ids if path == COMPLETION and isinstance(document.get("prompt"), str) else None


class HandOver:
    """`accepted` tells what a replica takes, None if nothing is known; `with_ids` writes a chat's
    field with a JSON array of ids."""

    def __init__(
        self,
        accepted: Callable[[str], Accepted | None],
        with_ids: Callable[[str, bytes], bytes],
        metrics: Metrics,
    ) -> None:
        self._accepted = accepted
        self._with_ids = with_ids
        counter = metrics.counter(
            "headrace_prompts_handed_over_total",
            "Prompts that a replica was given as token ids, by tries.",
            ("route",),
        )
        self._chats = counter.labels(CHAT)
        self._completions = counter.labels(COMPLETION)

    def __repr__(self) -> str:
        return f"<HandOver {self._accepted}>"

    def body(self, replica_id: str, sent: Sent) -> bytes:
        """The body for this replica."""
        ids = sent.ids
        if ids is None or (accepted := self._accepted(replica_id)) is None:
            return sent.body
        chat = sent.path == b"/v1/chat/completions"
        if not (accepted.chat if chat else accepted.completion):
            return sent.body
        numbers = array.array("I", ids).tolist()
        if accepted.chat and chat:
            self._chats.inc()
            # An object with its model in it, as `Call.upstream_body` writes it: it ends with `}`.
            more = self._with_ids(accepted.chat, orjson.dumps(numbers))
            return b"%b,%b}" % (sent.body[:-1], more)
        self._completions.inc()
        return orjson.dumps({**orjson.loads(sent.body), "prompt": numbers})
