"""What differs between the model servers, as far as the gateway must know. Pure.

What is the same everywhere stands where it is used: all end a request whose connection is closed,
and all report usage and cached tokens as OpenAI does (`usage.prompt_tokens_details.cached_tokens`,
SGLang with `--enable-cache-report`, vLLM with `--enable-prompt-tokens-details`). Which of them take
the ids of tokens is found out by asking (`backend/token_ids.py`), as versions differ there, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from backend.load import LoadNames

EngineKind = Literal["vllm", "sglang", "openai"]


def is_2xx(status: int) -> bool:
    return 200 <= status < 300


@dataclass(frozen=True, slots=True)
class Dialect:
    """`load`: what of its /metrics is read, None where it has none. `health_path`: in place of the
    configured one; `healthy`: whether the status of an answer there is a good one. `probe_s`: a
    probe is not made more often. `tells_sources`: it says itself where it publishes its KV events.
    `own_fields`: bodies may have fields that OpenAI's API does not know, as `cache_salt`."""

    load: LoadNames | None
    health_path: str | None = None
    healthy: Callable[[int], bool] = is_2xx
    probe_s: float = 0.0
    tells_sources: bool = True
    own_fields: bool = True
