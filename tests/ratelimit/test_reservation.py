from __future__ import annotations

from charges import TOKENS, charge_of, plan_of

from ratelimit.bucket import UNITS
from ratelimit.memory_store import MemoryStore
from ratelimit.plan import Amounts
from ratelimit.reservation import Reservation
from ratelimit.store import Charge

RENEW_S = 10.0


class Listening(MemoryStore):
    def __init__(self) -> None:
        super().__init__(lambda: 1.0)
        self.told: list[float] = []

    def progress(self, charge: Charge, used: Amounts) -> None:
        self.told.append(used[0] / UNITS)
        super().progress(charge, used)


async def held() -> tuple[Reservation, Listening, list[Reservation]]:
    store, ended = Listening(), list[Reservation]()
    charge = charge_of(plan_of(TOKENS), 10, 50)
    await store.reserve(charge)
    reservation = Reservation(10, 50)
    reservation.hold(store, charge, ended.append, 0.0)
    return reservation, store, ended


async def level(store: MemoryStore) -> float:
    return (await store.levels(plan_of(TOKENS)))[0] / UNITS


async def test_what_was_relayed_is_reported_when_there_is_more_of_it() -> None:
    reservation, store, _ = await held()
    relayed = 0
    reservation.follow(lambda: relayed)
    reservation.report(1.0, RENEW_S)
    assert store.told == []
    relayed = 20
    reservation.report(2.0, RENEW_S)
    reservation.report(3.0, RENEW_S)
    relayed = 90
    reservation.report(4.0, RENEW_S)
    assert store.told == [30, 100]
    assert await level(store) == 900


async def test_the_lease_is_renewed_though_nothing_is_new() -> None:
    reservation, store, _ = await held()
    reservation.report(9.0, RENEW_S)
    assert store.told == []
    reservation.report(10.0, RENEW_S)
    assert store.told == [0]  # nothing is used before there is output: all would come back
    reservation.follow(lambda: 5)
    reservation.report(11.0, RENEW_S)
    reservation.report(21.0, RENEW_S)
    assert store.told == [0, 15, 15]


async def test_it_ends_once_and_is_silent_afterwards() -> None:
    reservation, store, ended = await held()
    reservation.follow(lambda: 99)
    reservation.settle(10, 0, 20)
    reservation.abandon()
    reservation.settle(1, 0, 1)
    reservation.report(99.0, RENEW_S)
    assert store.told == []
    assert await level(store) == 970
    assert ended == [reservation]


async def test_leaving_the_block_gives_all_back() -> None:
    reservation, store, ended = await held()
    with reservation:
        assert await level(store) == 940
    assert await level(store) == 1000
    assert ended == [reservation]


def test_without_a_charge_nothing_happens() -> None:
    with Reservation(10, 50) as reservation:
        reservation.follow(lambda: 1)
        reservation.report(1.0, 0.0)
        reservation.settle(1, 0, 1)
    assert reservation.reserved_tokens == 60
