"""What a caller is told about the limits: header fields and the 429. Pure.

Everything follows from one decision of the store, so that it agrees with itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.errors import RateLimited
from ratelimit.bucket import UNITS, fill_us
from ratelimit.plan import Amounts, Bucket, Kind, Plan

Headers = tuple[tuple[bytes, bytes], ...]

_NAMES: dict[Kind, tuple[bytes, bytes, bytes]] = {
    "requests": (
        b"x-ratelimit-limit-requests",
        b"x-ratelimit-remaining-requests",
        b"x-ratelimit-reset-requests",
    ),
    "tokens": (
        b"x-ratelimit-limit-tokens",
        b"x-ratelimit-remaining-tokens",
        b"x-ratelimit-reset-tokens",
    ),
}


def headers(plan: Plan, levels: Sequence[int], first: int = -1) -> Headers:
    """The x-ratelimit triple of the tightest bucket of each kind: the one with the lowest level.

    `first` is the index of a bucket that goes before the others of its kind.
    """
    fields: list[tuple[bytes, bytes]] = []
    for kind, indexes in plan.by_kind:
        if first in indexes:
            i = first
        elif len(indexes) == 1:
            i = indexes[0]
        else:
            i = min(indexes, key=levels.__getitem__)
        limit, remaining, reset = _NAMES[kind]
        bucket, level = plan.buckets[i], levels[i]
        capacity, per_minute = bucket.limit
        fields += (
            (limit, bucket.limit_header),
            (remaining, b"%d" % (level // UNITS if level > 0 else 0)),
            (reset, span(fill_us(capacity - level, per_minute))),
        )
    return tuple(fields)


def span(microseconds: int) -> bytes:
    """A duration as OpenAI writes it, rounded up: 0s, 17ms, 9s, 6m0s."""
    if microseconds < 1_000_000:
        return b"%dms" % -(-microseconds // 1000) if microseconds > 0 else b"0s"
    seconds = -(-microseconds // 1_000_000)
    return b"%ds" % seconds if seconds < 60 else b"%dm%ds" % divmod(seconds, 60)


def lacking(plan: Plan, amounts: Amounts, levels: Sequence[int]) -> int:
    """The index of the bucket that refused; of several the one that takes longest to recover."""
    waits = [
        fill_us(amount - level, bucket.limit[1]) if level < amount else -1
        for bucket, amount, level in zip(plan.buckets, amounts, levels, strict=True)
    ]
    return max(range(len(waits)), key=waits.__getitem__)


def refusal(plan: Plan, amounts: Amounts, levels: Sequence[int], index: int) -> RateLimited:
    """The 429 for a request that may come back: the bucket at `index` lacks something."""
    bucket = plan.buckets[index]
    wait_us = fill_us(amounts[index] - levels[index], bucket.limit[1])
    return RateLimited(
        f"Rate limit `{bucket.rule.name}` reached for model `{plan.model}`: "
        f"{bucket.limit[1]} {bucket.kind} per minute, {max(levels[index], 0) // UNITS} left, "
        f"{amounts[index] // UNITS} needed. Try again in {span(wait_us).decode()}.",
        retry_after_s=wait_us / 1e6,
        headers=headers(plan, levels, index),
    )


def hopeless(plan: Plan, bucket: Bucket, prompt_tokens: int) -> RateLimited:
    """The 429 for a prompt that no full bucket could pay for: no Retry-After."""
    return RateLimited(
        f"The prompt has {prompt_tokens} tokens, more than the {bucket.limit[0] // UNITS} that "
        f"the limit `{bucket.rule.name}` ever allows at once for model `{plan.model}`: "
        "it can never pass.",
        code="prompt_exceeds_rate_limit",
        param="prompt",
    )
