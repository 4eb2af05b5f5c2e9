from __future__ import annotations

from charges import TOKENS, charge_of, plan_of

from ratelimit.leases import QUIET_S, REPORT_S, Leases
from ratelimit.memory_store import MemoryStore
from ratelimit.plan import Amounts
from ratelimit.reservation import Reservation
from ratelimit.store import Charge


class Listening(MemoryStore):
    def __init__(self) -> None:
        super().__init__(lambda: 1.0)
        self.told = 0

    def progress(self, charge: Charge, used: Amounts) -> None:
        self.told += 1


class Now:
    def __init__(self) -> None:
        self.at = 50.0

    def __call__(self) -> float:
        return self.at


async def hold(leases: Leases, store: Listening) -> Reservation:
    charge = charge_of(plan_of(TOKENS))
    await store.reserve(charge)
    reservation = leases.hold(Reservation(1, 1), store, charge)
    relayed = iter(range(1, 1000))
    reservation.follow(lambda: next(relayed))
    return reservation


async def test_each_reports_in_its_turn_and_not_after_its_end() -> None:
    now, store = Now(), Listening()
    leases = Leases(store, 30.0, now)
    first = await hold(leases, store)
    now.at += REPORT_S / 2
    await hold(leases, store)
    leases.report()
    assert store.told == 0
    now.at += REPORT_S / 2
    leases.report()
    assert store.told == 1
    now.at += REPORT_S / 2
    leases.report()
    assert store.told == 2
    first.settle(1, 0, 1)
    assert len(leases) == 1
    now.at += REPORT_S
    leases.report()
    assert store.told == 3


def test_a_short_lease_is_renewed_sooner() -> None:
    now, store = Now(), Listening()
    leases = Leases(store, 1.5, now)
    leases.hold(Reservation(1, 1), store, charge_of(plan_of(TOKENS)))
    for _ in range(3):
        now.at += 0.5
        leases.report()
    assert store.told == 3


async def test_who_has_nothing_new_is_asked_less_often_until_it_has() -> None:
    now, store = Now(), Listening()
    leases = Leases(store, 300.0, now)
    charge = charge_of(plan_of(TOKENS))
    await store.reserve(charge)
    reservation = leases.hold(Reservation(1, 1), store, charge)
    relayed, asked = 1, 0

    def output() -> int:
        nonlocal asked
        asked += 1
        return relayed

    async def seconds(count: int) -> int:
        before = asked
        for _ in range(count * 4):
            now.at += 0.25
            leases.report()
        return asked - before

    reservation.follow(output)
    assert await seconds(1) == 1
    assert store.told == 1
    assert await seconds(30) <= 30 / QUIET_S + 1
    assert store.told == 1
    relayed = 2
    assert await seconds(int(QUIET_S)) >= 1
    assert store.told == 2
    assert len(leases) == 1
    reservation.settle(1, 0, 2)
    assert len(leases) == 0
