"""What a caller is told about the limits: header fields and the 429. Pure.

Everything follows from one decision of the store, so that it agrees with itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.errors import RateLimited
from ratelimit.bucket import UNITS, fill_us
from ratelimit.plan import Amounts, Bucket, Plan

Headers = tuple[tuple[bytes, bytes], ...]


def headers(plan: Plan, levels: Sequence[int], first: int = -1) -> Headers:
    """The x-ratelimit triple of the tightest bucket of each kind: the one with the lowest level.

    `first` is the index of a bucket that goes before the others of its kind.
    """
    fields: list[tuple[bytes, bytes]] = []
    for indexes in plan.by_kind:
        if len(indexes) == 1:
            i = indexes[0]
        elif first in indexes:
            i = first
        else:
            i = min(indexes, key=levels.__getitem__)
        capacity, per_minute, limit, remaining, reset = plan.told[i]
        level = levels[i]
        # `span(fill_us(...))`, spelled out where it is short: this runs for each request.
        wait_us = -(-60 * (capacity - level) // per_minute)
        if 0 < wait_us < 1_000_000:
            wait = b"%dms" % -(-wait_us // 1000)
        else:
            wait = span(fill_us(capacity - level, per_minute))
        left = b"%d" % (level // UNITS) if level > 0 else b"0"
        fields += (limit, (remaining, left), (reset, wait))
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
