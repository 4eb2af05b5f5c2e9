"""What sending a request to a replica costs, in seconds; the lowest wins. Pure.

With isl prompt tokens, cached of them resident, W pending prefill tokens, n in flight, K live KV
tokens, KV the cache's size, P tokens prefilled a second, a and b the decode step's cost per
sequence and per KV token, O the expected output, C the attention knee:

    u      = max(isl - cached, 1)           an engine computes the last token anyway
    own    = u/P * (1 + (cached + u/2)/C)   its own prefill
    queue  = 1.2 * W/P                      the time until that starts
    others = n*min(own, 1.5) + n*O*2a + O*b*K   the delay it causes to others, and they to it
    room   = 2 * max(0, (K + u + O)/KV - .85)/.15   the danger of preemption
    total  = queue + own + room + lambda*others + slow start + session

`session` is not positive: what the index cannot know of the replica that has just served the same
session is taken to be worth its own prefill, up to a bound.

The bound of 1.5 s is for the longest prompts: without it they are sent where few are disturbed, and
wait there behind one another, which the slowest first tokens pay for. The figures behind 1.2 and
1.5 are in docs/routing.md.

No thresholds: a hot prefix spreads by itself, because queue grows until another replica's cold
prefill is cheaper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from routing.learning import Speed
from routing.ledger import Account

_QUEUE_FACTOR = 1.2
_MOST_DISTURBANCE_S = 1.5
_FULL = 0.85
_ROOM_SECONDS = 2.0


class Score(NamedTuple):
    """The terms, in seconds. `others` is not yet weighted by lambda."""

    total: float
    queue: float
    own: float
    others: float
    room: float
    slow_start: float
    session: float = 0.0


Wish = tuple[int, int, Sequence[int]]
"""A request to place: its length in tokens, the output tokens expected of it, its blocks. A plain
tuple, as `Terms`, because a class of its own takes longer to make than to use."""

Terms = tuple[float, float, float, float, float, float, float]
"""The fields of a `Score` as a plain tuple, which every candidate gets."""


class Weights(NamedTuple):
    """`knee` is C in tokens, `others` is lambda."""

    knee: float
    others: float


class Loaded(Protocol):
    """What the cost needs to know of a replica. `foreign_*` is load that others put there."""

    account: Account
    speed: Speed
    kv_tokens: int
    foreign_tokens: float
    foreign_in_flight: float


def queue_seconds(replica: Loaded) -> float:
    """The time until a prefill sent now would start."""
    pending = replica.account.pending_tokens + replica.foreign_tokens
    return _QUEUE_FACTOR * pending / replica.speed.prefill_rate


def has_enough(replica: Loaded, hold_s: float) -> bool:
    """Whether more than `hold_s` seconds of prefill wait there."""
    pending = replica.account.pending_tokens + replica.foreign_tokens
    return pending > hold_s * replica.speed.prefill_rate


def work_tokens(uncached: int, cached: int, knee: float) -> float:
    """Prefill work in tokens at rate P: attention makes late tokens dearer."""
    return uncached * (1.0 + (cached + uncached / 2) / knee)


def scores(
    replicas: Sequence[Loaded],
    wish: Wish,
    cached: Sequence[int],
    weights: Weights,
    slow_starts: Sequence[float] | None = None,
) -> list[Terms]:
    """The terms of each replica, of which `cached` tells the tokens that are resident there.

    One flat loop over plain values: it is every request's work, once per replica.
    """
    length, output, _ = wish
    knee, weight = weights
    decode = output * 2.0
    slow_start = 0.0
    result: list[Terms] = []
    for number, replica in enumerate(replicas):
        account = replica.account
        speed = replica.speed
        rate = speed.prefill_rate
        held = cached[number]
        uncached = length - held if held < length else 1
        live = account.live_tokens
        beside = account.in_flight + replica.foreign_in_flight
        own = uncached * (1.0 + (held + uncached / 2) / knee) / rate
        queue = _QUEUE_FACTOR * (account.pending_tokens + replica.foreign_tokens) / rate
        disturbance = own if own < _MOST_DISTURBANCE_S else _MOST_DISTURBANCE_S
        others = beside * (disturbance + decode * speed.per_sequence)
        others += output * speed.per_token * live
        use = (live + uncached + output) / replica.kv_tokens
        room = _ROOM_SECONDS * (use - _FULL) / (1.0 - _FULL) if use > _FULL else 0.0
        if slow_starts is not None:
            slow_start = slow_starts[number]
        total = queue + own + room + weight * others + slow_start
        result.append((total, queue, own, others, room, slow_start, 0.0))
    return result


def favoured(terms: Terms, bonus_s: float) -> Terms:
    """`terms` of the replica that served the session last."""
    total, queue, own, others, room, slow_start, _ = terms
    bonus = min(bonus_s, own)
    return total - bonus, queue, own, others, room, slow_start, -bonus
