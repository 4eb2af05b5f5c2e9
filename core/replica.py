"""A replica: one model server. Identity is fixed, load is what it last reported."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Replica:
    """Identity and fixed properties of one model server.

    `id` is unique and stable (used in logs and metrics). `kv_tokens` is the size of its KV
    cache in tokens (None: not known), `weight` its relative speed (1.0 = like the others),
    `max_in_flight` a limit on concurrent exchanges (None: none).
    """

    id: str
    model: str
    weight: float = 1.0
    max_in_flight: int | None = None
    kv_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """What a replica's /metrics said at `observed_at` (monotonic seconds). An audit only."""

    running: float
    waiting: float
    kv_use: float
    observed_at: float
    kv_tokens: int | None = None


def prefill_name(model: str) -> str:
    """The model of replicas that only prefill for `model`: they are told apart from those that
    answer, and judged by themselves."""
    return f"{model} (prefill)"
