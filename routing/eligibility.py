"""Which replicas may take a request, and what to say when none may. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from core.errors import Unavailable
from routing.admission import Offer, Waiter
from routing.member import Member
from routing.policy import Choice, Policy
from routing.score import has_enough, queue_seconds

UNPROVEN_IN_FLIGHT = 4
"""So many at once until a replica that came has answered."""
_NO_REPLICA_RETRY_S = 2.0
_FULL_RETRY_S = 1.0


def refusal(members: Sequence[Member], full: int, small: int) -> Unavailable:
    """Of `members` so many are full, and so many too small for the request; others were tried."""
    if not members:
        reason, retry_s = "no_replica", _NO_REPLICA_RETRY_S
        text = "No replica of this model is available."
    elif full:
        waits = [queue_seconds(member) for member in members]
        reason, retry_s = "replicas_full", max(_FULL_RETRY_S, min(waits))
        text = "Every replica of this model has as many requests as it may."
    elif small:
        reason, retry_s = "kv_too_small", _NO_REPLICA_RETRY_S
        text = "No replica has a cache large enough for this prompt and its output."
    else:
        reason, retry_s = "replicas_tried", _FULL_RETRY_S
        text = "Every replica of this model was tried."
    return Unavailable(text, code=reason, retry_after_s=retry_s)


def saturated(members: Sequence[Member], hold_s: float) -> bool:
    """Whether every one has as much to do as it may hold."""
    return all(has_enough(member, hold_s) for member in members)


def with_room(members: Sequence[Member], hold_s: float) -> list[Member]:
    """Those to which one that waits may be sent."""
    room = []
    for member in members:
        in_flight, limit = member.account.in_flight, member.replica.max_in_flight
        full = limit is not None and in_flight >= limit
        unproven = not member.proven and in_flight >= UNPROVEN_IN_FLIGHT
        if not full and not unproven and not has_enough(member, hold_s):
            room.append(member)
    return room


def offers(
    policy: Policy, members: Sequence[Member], room: Sequence[Member], now: float
) -> Offer[Choice]:
    """What `policy` would do for one that waits, with those of `members` that have `room`."""

    def offer(waiter: Waiter) -> tuple[float, Choice] | None:
        exclude, needed = waiter.exclude, waiter.needed
        suitable = [
            member
            for member in room
            if not (member.kv_known and needed > member.kv_tokens)
            and member.replica.id not in exclude
        ]
        return policy.offer(members, suitable, waiter.wish, now) if suitable else None

    return offer
