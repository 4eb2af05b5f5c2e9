"""What sending a request to a replica costs, in seconds; the lowest wins. Pure.

With isl prompt tokens, cached of them resident, W pending prefill tokens, n in flight, K live KV
tokens, KV the cache's size, P tokens prefilled a second, a and b the decode step's cost per
sequence and per KV token, O the expected output, C the attention knee:

    u   = max(isl - cached, 1)              an engine computes the last token anyway
    own   = u/P * (1 + (cached + u/2)/C)    its own prefill
    queue = 1.15 * W/P                      the time until that starts
    others = n*own + n*O*2a + O*b*K         the delay it causes to others, and they to it
    room  = 2 * max(0, (K + u + O)/KV - .85)/.15    the danger of preemption
    total = queue + own + room + lambda*others + slow start

No thresholds: a hot prefix spreads by itself, because queue grows until another replica's cold
prefill is cheaper.
"""

from __future__ import annotations

from typing import NamedTuple

from routing.learning import Speed
from routing.ledger import Account

_QUEUE_FACTOR = 1.15
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


def queue_seconds(account: Account, speed: Speed, foreign_tokens: float = 0.0) -> float:
    """The time until a prefill sent now would start."""
    return _QUEUE_FACTOR * (account.pending_tokens + foreign_tokens) / speed.prefill_rate


def work_tokens(uncached: int, cached: int, knee: float) -> float:
    """Prefill work in tokens at rate P: attention makes late tokens dearer."""
    return uncached * (1.0 + (cached + uncached / 2) / knee)


def score(
    account: Account,
    speed: Speed,
    *,
    length: int,
    cached: int,
    output: int,
    kv_tokens: int,
    knee: float,
    weight: float,
    foreign_tokens: float = 0.0,
    foreign_in_flight: float = 0.0,
    slow_start: float = 0.0,
) -> Score:
    """`weight` is lambda; `foreign_*` is load that others put there; `slow_start` in seconds."""
    uncached = length - cached
    uncached = max(uncached, 1)
    live = account.live_tokens
    beside = account.in_flight + foreign_in_flight
    own = uncached * (1.0 + (cached + uncached / 2) / knee) / speed.prefill_rate
    queue = queue_seconds(account, speed, foreign_tokens)
    others = beside * (own + output * 2.0 * speed.per_sequence) + output * speed.per_token * live
    use = (live + uncached + output) / kv_tokens
    room = _ROOM_SECONDS * (use - _FULL) / (1.0 - _FULL) if use > _FULL else 0.0
    total = queue + own + room + weight * others + slow_start
    return Score(total, queue, own, others, room, slow_start)
