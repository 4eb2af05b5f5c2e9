"""What a caller is told about the limits: header fields and refusals. Pure.

Everything follows from one decision of the store, so that it agrees with itself. There are two
kinds of fields: x-ratelimit-*, as OpenAI's SDKs know them, of the tightest bucket of requests and
of the tightest one of tokens; and RateLimit and RateLimit-Policy (draft-ietf-httpapi-ratelimit-
headers-11), of every rule by its name. Rules in shadow are not mentioned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from core.errors import Forbidden, GatewayError, RateLimited
from ratelimit.bucket import MAX_FILL_US, UNITS, fill_us
from ratelimit.config import Unit
from ratelimit.plan import Amounts, Bucket, Plan

Field = tuple[bytes, bytes]
Headers = tuple[Field, ...]

DEGRADED: Final[Field] = (b"x-headrace-limits", b"degraded")
"""The limits' store was not asked: this process counted by itself, or let pass."""
STREAMS_RETRY_US: Final = 1_000_000
"""When to ask again for a slot: nobody knows when one is free."""
_KINDS: Final[dict[Unit, bytes]] = {
    "requests": b"requests",
    "input_tokens": b"tokens",
    "output_tokens": b"tokens",
    "total_tokens": b"tokens",
}
_QUOTA_UNITS: Final[dict[Unit, str]] = {
    "input_tokens": "input-tokens",
    "output_tokens": "output-tokens",
    "total_tokens": "tokens",
    "cost_units": "cost-units",
    "concurrent": "concurrent-requests",
}


Triple = tuple[Field, bytes, bytes]
"""The x-ratelimit fields of one bucket: the first as it is, and the names of the others."""


class Told(NamedTuple):
    """What can be said of a plan once for all. `triples`: of each bucket of requests or tokens;
    `rivals`: the indexes of those of one kind, where a kind has several. `rate_limit` has two holes
    for each of the `items`, one for streams: index, capacity, window and refill (0: streams)."""

    policy: Field | None
    triples: dict[int, Triple]
    rivals: tuple[tuple[int, ...], ...]
    rate_limit: bytes
    items: tuple[tuple[int, int, int, int], ...]


def told(plan: Plan) -> Told:
    shown = [(i, bucket) for i, bucket in enumerate(plan.buckets) if not bucket.rule.shadow]
    kinds: dict[bytes, list[int]] = {}
    triples = {}
    for i, bucket in shown:
        if (kind := _KINDS.get(bucket.rule.unit)) is not None:
            kinds.setdefault(kind, []).append(i)
            triples[i] = (
                (b"x-ratelimit-limit-" + kind, b"%d" % (bucket.limit.capacity // UNITS)),
                b"x-ratelimit-remaining-" + kind,
                b"x-ratelimit-reset-" + kind,
            )
    policy = ", ".join(_policy(bucket) for _, bucket in shown).encode("ascii")
    items = [f'"{b.rule.name}";r=%d' + ("" if b.concurrent else ";t=%d") for _, b in shown]
    return Told(
        (b"ratelimit-policy", policy) if policy else None,
        triples,
        tuple(tuple(indexes) for indexes in kinds.values() if len(indexes) > 1),
        ", ".join(items).encode("ascii"),
        tuple(
            (i, b.limit.capacity, b.limit.window_s, 0 if b.concurrent else b.limit.refill)
            for i, b in shown
        ),
    )


def _policy(bucket: Bucket) -> str:
    """The quota is what flows in per window; a bucket may hold more, or less."""
    rule, limit = bucket.rule, bucket.limit
    unit = f';qu="{_QUOTA_UNITS[rule.unit]}"' if rule.unit in _QUOTA_UNITS else ""
    window = "" if bucket.concurrent else f";w={limit.window_s}"
    return f'"{rule.name}";q={limit.refill}{unit}{window}'


def headers(said: Told, levels: Sequence[int], first: int = -1) -> Headers:
    """The fields for an answer. `first` is the index of a bucket that goes before the others of
    its kind: the one that refused."""
    if said.policy is None:
        return ()
    triples = said.triples
    for indexes in said.rivals:
        shown = first if first in indexes else min(indexes, key=levels.__getitem__)
        triples = {i: triple for i, triple in triples.items() if i == shown or i not in indexes}
    fields: list[Field] = []
    numbers: list[int] = []
    for i, capacity, window_s, refill in said.items:
        level = levels[i]
        left = level // UNITS if level > 0 else 0
        if not refill:
            numbers.append(left)
            continue
        wait_us = -(-window_s * (capacity - level) // refill)  # as `fill_us`, for each request
        numbers += left, -(-wait_us // 1_000_000)
        if i in triples:
            limit, remaining, reset = triples[i]
            wait = span(wait_us if wait_us < MAX_FILL_US else MAX_FILL_US)
            fields += limit, (remaining, b"%d" % left), (reset, wait)
    fields += (said.policy, (b"ratelimit", said.rate_limit % tuple(numbers)))
    return tuple(fields)


def span(microseconds: int) -> bytes:
    """A duration as OpenAI writes it, rounded up: 0s, 17ms, 9s, 6m0s."""
    if microseconds < 1_000_000:
        return b"%dms" % -(-microseconds // 1000) if microseconds > 0 else b"0s"
    seconds = -(-microseconds // 1_000_000)
    return b"%ds" % seconds if seconds < 60 else b"%dm%ds" % divmod(seconds, 60)


def lacking(plan: Plan, least: Amounts, levels: Sequence[int]) -> int:
    """The index of the bucket that refused; of several the one that takes longest to recover."""
    waits = [
        _wait_us(bucket, amount, level) if level < amount and not bucket.rule.shadow else -1
        for bucket, amount, level in zip(plan.buckets, least, levels, strict=True)
    ]
    return max(range(len(waits)), key=waits.__getitem__)


def _wait_us(bucket: Bucket, amount: int, level: int) -> int:
    return STREAMS_RETRY_US if bucket.concurrent else fill_us(amount - level, bucket.limit)


def refusal(
    plan: Plan, said: Told, least: Amounts, levels: Sequence[int], index: int
) -> GatewayError:
    """The 429 for a request that may come back: the bucket at `index` lacks something."""
    bucket = plan.buckets[index]
    wait_us = _wait_us(bucket, least[index], levels[index])
    left = max(levels[index], 0) // UNITS
    needed = -(-least[index] // UNITS)
    return RateLimited(
        f"Rate limit `{bucket.rule.name}` reached for model `{plan.model}`: {_rate(bucket)}, "
        f"{left} left, {needed} needed. Try again in {span(wait_us).decode()}.",
        retry_after_s=wait_us / 1e6,
        headers=_refusing(headers(said, levels, index), bucket, wait_us),
        details={"limit": reason(bucket)},
    )


def _refusing(fields: Headers, bucket: Bucket, wait_us: int) -> Headers:
    """Retry-After must not come before the end of what RateLimit tells (section 6 of the draft)."""
    wait = b'"%b";r=0;t=%d' % (bucket.rule.name.encode("ascii"), -(-wait_us // 1_000_000))
    return tuple((name, wait if name == b"ratelimit" else value) for name, value in fields)


def hopeless(plan: Plan, index: int, prompt_tokens: int) -> GatewayError:
    """The 403 for a prompt that no full bucket could pay for: it need not come back."""
    bucket = plan.buckets[index]
    return Forbidden(
        f"The prompt has {prompt_tokens} tokens. That is more than the limit `{bucket.rule.name}` "
        f"({bucket.limit.capacity // UNITS} {_words(bucket)} at once) ever allows for model "
        f"`{plan.model}`: it can never pass.",
        code="prompt_exceeds_rate_limit",
        param="prompt",
        details={"limit": reason(bucket)},
    )


def reason(bucket: Bucket) -> dict[str, Any]:
    """Why, for machines."""
    rule, limit = bucket.rule, bucket.limit
    said: dict[str, Any] = {"rule": rule.name, "per": list(rule.per), "unit": rule.unit}
    if not bucket.concurrent:
        said |= {"window": rule.window, "burst": limit.capacity // UNITS}
    return said | {"limit": limit.refill}


def _rate(bucket: Bucket) -> str:
    if bucket.concurrent:
        return f"{bucket.limit.refill} streams at once"
    return f"{bucket.limit.refill} {_words(bucket)} per {bucket.rule.window}"


def _words(bucket: Bucket) -> str:
    return bucket.rule.unit.replace("_", " ")
