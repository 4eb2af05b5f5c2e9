from __future__ import annotations

from core.replica import Load, Replica
from routing.config import RoutingConfig
from routing.fleet import ModelFleet
from routing.index import PrefixIndex
from routing.learning import ModelSpeed
from routing.member import NEVER, Member

A, B, C = (Replica(name, "m") for name in "abc")
BLOCKS = [1, 2, 3]


class Setup:
    def __init__(self) -> None:
        self.index = PrefixIndex(100_000)
        self.gone: list[str] = []
        self.fleet = ModelFleet(
            RoutingConfig(), self.index, lambda member: self.gone.append(member.replica.id)
        )

    def update(self, replicas: tuple[Replica, ...], now: float) -> dict[str, Member]:
        return {m.replica.id: m for m in self.fleet.update(replicas, now)}

    def held_by(self, member: Member) -> None:
        self.index.expect(member.entry, BLOCKS)
        self.index.confirm(member.entry, BLOCKS)

    def held(self, member: Member) -> int:
        return self.index.match(BLOCKS, member.entry.bit)[0][1]


def test_those_there_from_the_start_need_no_slow_start() -> None:
    setup = Setup()
    members = setup.update((A, B), 5.0)
    assert all(m.appeared_at == NEVER and m.proven for m in members.values())
    later = setup.update((A, B, C), 9.0)
    assert later["a"] is members["a"]
    assert later["c"].appeared_at == 9.0
    assert not later["c"].proven


def test_a_flap_keeps_the_prefixes_and_a_long_absence_does_not() -> None:
    setup = Setup()
    both = (A, B)
    member = setup.update(both, 0.0)["a"]
    setup.held_by(member)
    setup.update((B,), 10.0)
    back = setup.update(both, 15.0)["a"]
    assert back is member
    assert setup.held(back) == 3
    assert back.appeared_at == 15.0
    setup.update((B,), 20.0)
    back = setup.update((A, B), 31.0)["a"]
    assert back is member
    assert setup.held(back) == 0


def test_the_long_gone_are_forgotten() -> None:
    setup = Setup()
    member = setup.update((A, B), 0.0)["a"]
    rest = (B,)
    setup.update(rest, 10.0)
    setup.update(rest, 129.0)
    assert setup.gone == []
    setup.update(rest, 131.0)
    assert setup.gone == ["a"]
    assert not member.entry.alive
    assert setup.update((A, B), 132.0)["a"] is not member


def test_removal_and_return_at_the_same_address_is_cold() -> None:
    setup = Setup()
    both = (A, B)
    member = setup.update(both, 0.0)["a"]
    setup.held_by(member)
    setup.fleet.forget("a")
    setup.fleet.forget("unknown")
    again = setup.update(both, 0.1)["a"]
    assert again is not member
    assert setup.held(again) == 0
    assert again.appeared_at == 0.1
    setup.update((B,), 1.0)
    setup.fleet.forget("a")
    assert setup.gone == ["a", "a"]


def test_changed_properties_are_taken_over() -> None:
    setup = Setup()
    member = setup.update((A,), 0.0)["a"]
    changed = Replica("a", "m", max_in_flight=3)
    assert setup.update((changed,), 1.0)["a"] is member
    assert member.replica is changed


def test_means_follow_the_answers() -> None:
    fleet = Setup().fleet
    assert fleet.output_tokens == 300
    fleet.observed(0)
    assert fleet.output_tokens == 300
    for _ in range(200):
        fleet.observed(50)
    assert 49 < fleet.output_tokens < 51
    fleet.observed(2**31)  # a replica's word for it
    assert fleet.output_tokens < 80


def test_a_reported_cache_size_is_taken_unless_configured() -> None:
    index = PrefixIndex(100_000)
    config = RoutingConfig()
    load = Load(0, 0, 0, 1.0, kv_tokens=6400)
    speeds = ModelSpeed(16_000.0, 8e-5, 2e-8)
    free = Member(A, config, index=index, speeds=speeds, appeared_at=NEVER)
    assert not free.kv_known
    free.review(load, index, 64, 0.0, 1.0)
    assert (free.kv_known, free.kv_tokens, free.entry.capacity) == (True, 6400, 100)
    configured = Replica("f", "m", kv_tokens=640)
    fixed = Member(configured, config, index=index, speeds=speeds, appeared_at=NEVER)
    fixed.review(load, index, 64, 0.0, 1.0)
    assert (fixed.kv_known, fixed.kv_tokens, fixed.entry.capacity) == (True, 640, 10)
