"""Why a request would go where it would go. Pure: nothing is charged, nothing changes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from core.errors import Unavailable
from routing.eligibility import eligible, obstacle, saturated, with_room
from routing.member import Member
from routing.policy import Policy
from routing.score import Score, Wish


class Target(NamedTuple):
    """One replica. `obstacle`: why it gets nothing now (empty: it may). `score` is in seconds, None
    where the policy has none. The rest is what the score is made of; tokens, and tokens a second.
    `room`: one that waits may be sent there."""

    replica: str
    obstacle: str
    room: bool
    cached_tokens: int
    score: Score | None
    in_flight: int
    pending_tokens: int
    live_tokens: int
    foreign_in_flight: float
    foreign_tokens: float
    kv_tokens: int
    prefill_rate: float


class Explanation(NamedTuple):
    """`choice`: the replica; None if the request would wait or be refused, which `reason` tells in
    one word. `waiting`: requests that wait already."""

    choice: str | None
    reason: str
    waiting: int
    targets: list[Target]


def explain(
    policy: Policy,
    members: Sequence[Member],
    wish: Wish,
    *,
    needed: int,
    hold_s: float | None,
    waiting: int,
    last: str | None,
    exclude: Collection[str],
    now: float,
) -> Explanation:
    """As the router would decide. `hold_s` None: nobody waits."""
    room = [] if hold_s is None else with_room(members, hold_s)
    obstacles = [obstacle(member, needed, exclude) for member in members]
    weighed = dict(zip(members, policy.weigh(members, wish, now, last), strict=True))
    choice, reason = None, ""
    try:
        fit = eligible(members, needed, exclude, patient=hold_s is not None)
        if not fit or waiting or (hold_s is not None and saturated(fit, hold_s)):
            reason = "waits"
        else:
            chosen = policy.choose(fit, wish, now, last)
            choice = chosen[0].replica.id
            # What the others are weighed at depends a little on who is eligible.
            weighed |= dict(zip(fit, policy.weigh(fit, wish, now, last), strict=True))
            reason = "chosen"
    except Unavailable as error:
        reason = error.reason
    targets = [
        _target(member, why, member in room, *weighed[member])
        for member, why in zip(members, obstacles, strict=True)
    ]
    return Explanation(choice, reason, waiting, targets)


def _target(member: Member, why: str, room: bool, cached: int, score: Score | None) -> Target:
    account = member.account
    return Target(
        replica=member.replica.id,
        obstacle=why,
        room=room,
        cached_tokens=cached,
        score=score,
        in_flight=account.in_flight,
        pending_tokens=account.pending_tokens,
        live_tokens=account.live_tokens,
        foreign_in_flight=member.foreign_in_flight,
        foreign_tokens=member.foreign_tokens,
        kv_tokens=member.kv_tokens,
        prefill_rate=member.speed.prefill_rate,
    )
