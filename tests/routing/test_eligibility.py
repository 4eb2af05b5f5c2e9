"""Which replicas have room for one that waits."""

from __future__ import annotations

from typing import Any

import pytest

from core.replica import Replica
from routing.admission import Waiter
from routing.config import RoutingConfig
from routing.eligibility import UNPROVEN_IN_FLIGHT, offers, refusal, with_room
from routing.index import PrefixIndex
from routing.learning import ModelSpeed
from routing.member import NEVER, Member
from routing.policy import LeastLoad

CONFIG = RoutingConfig()
SPEED = ModelSpeed(1000.0, 0.0, 0.0)


def member(name: str = "a", *, appeared_at: float = NEVER, **properties: Any) -> Member:
    replica = Replica(name, "m", **properties)
    index = PrefixIndex(1000)
    return Member(replica, CONFIG, index=index, speeds=SPEED, appeared_at=appeared_at)


def test_room_ends_with_pending_work_with_places_and_for_the_unproven() -> None:
    busy, full, cold, free = (
        member(),
        member(max_in_flight=1),
        member(appeared_at=5.0),
        member(max_in_flight=2),
    )
    busy.account.charge(1001, 1001)
    full.account.charge(1, 1)
    free.account.charge(1000, 1000)
    for _ in range(UNPROVEN_IN_FLIGHT):
        assert cold in with_room([cold], 1.0)
        cold.account.charge(1, 1)
    assert with_room([busy, full, cold, free], 1.0) == [free]
    assert with_room([busy, free], 2.0) == [busy, free]


def test_offers_leave_out_those_tried_and_those_too_small() -> None:
    small, tried, good = member("s", kv_tokens=640), member("t"), member("g")
    room = [small, tried, good]
    offer = offers(LeastLoad(), room, room, 0.0)
    found = offer(Waiter((700, 0, ()), needed=700, exclude=("t",)))
    assert found is not None
    assert found[1][0] is good
    assert offer(Waiter((700, 0, ()), needed=700, exclude=("t", "g"))) is None


@pytest.mark.parametrize(
    ("number", "full", "small", "reason"),
    [
        (0, 0, 0, "no_replica"),
        (1, 1, 0, "replicas_full"),
        (1, 0, 1, "kv_too_small"),
        (1, 0, 0, "replicas_tried"),
    ],
)
def test_refusals_say_why(number: int, full: int, small: int, reason: str) -> None:
    assert refusal([member()] * number, full, small).reason == reason
