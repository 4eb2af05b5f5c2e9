"""Which replicas may take a request, and what to say when none may. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

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


def obstacle(member: Member, needed: int, exclude: Collection[str]) -> str:
    """Why `member` does not get a request that needs so many KV tokens; empty if it may."""
    in_flight, limit = member.account.in_flight, member.replica.max_in_flight
    if member.replica.id in exclude:
        return "tried"
    if limit is not None and in_flight >= limit:
        return "full"
    if member.kv_known and needed > member.kv_tokens:
        return "kv_too_small"
    if not member.proven and in_flight >= UNPROVEN_IN_FLIGHT:
        return "unproven"
    return ""


def eligible(
    members: Sequence[Member], needed: int, exclude: Collection[str], patient: bool
) -> Sequence[Member]:
    """Those without an obstacle now; of the `patient` none, if some will have none later. Raises
    Unavailable.

    The rules of `obstacle` in one flat loop, as it is every request's.
    """
    fit: list[Member] = []
    unproven: list[Member] = []
    full = small = 0
    for member in members:
        if exclude and member.replica.id in exclude:
            continue
        in_flight = member.account.in_flight
        limit = member.replica.max_in_flight
        if limit is not None and in_flight >= limit:
            full += 1
        elif member.kv_known and needed > member.kv_tokens:
            small += 1
        elif not member.proven and in_flight >= UNPROVEN_IN_FLIGHT:
            unproven.append(member)
        else:
            fit.append(member)
    if fit:
        return fit
    if unproven:  # better a cold replica than none
        return unproven
    if full and patient:
        return ()
    raise refusal(members, full, small)


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
    policy: Policy,
    members: Sequence[Member],
    room: Sequence[Member],
    now: float,
    *,
    waiting: int = 0,
) -> Offer[Choice]:
    """What `policy` would do for one of those that are `waiting`, with those of `members` that
    have `room`."""

    def offer(waiter: Waiter) -> tuple[float, Choice] | None:
        exclude, needed = waiter.exclude, waiter.needed
        suitable = [
            member
            for member in room
            if not (member.kv_known and needed > member.kv_tokens)
            and member.replica.id not in exclude
        ]
        if not suitable:
            return None
        return policy.offer(members, suitable, waiter.wish, now, waiting=waiting)

    return offer
