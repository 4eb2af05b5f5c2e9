from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from core.replica import Replica
from routing.config import RoutingConfig
from routing.index import PrefixIndex
from routing.learning import ModelSpeed
from routing.member import NEVER, Member
from routing.policy import Choice, LeastLoad, PrefixAffinity, RoundRobin, make_policy
from routing.score import Wish

BLOCKS = list(range(1, 101))


class Fleet:
    """Members and an index, to be set up by hand."""

    def __init__(self, number: int, **config: object) -> None:
        self.config = RoutingConfig(**config)  # type: ignore[arg-type]
        self.index = PrefixIndex(100_000)
        speeds = ModelSpeed(16_000.0, 8e-5, 2e-8)
        self.members = [
            Member(
                Replica(f"r{i}", "m"),
                self.config,
                index=self.index,
                speeds=speeds,
                appeared_at=NEVER,
            )
            for i in range(number)
        ]
        self.policy = PrefixAffinity(self.config, self.index)

    def holds(self, number: int, blocks: Sequence[int]) -> None:
        self.index.expect(self.members[number].entry, blocks).confirm()

    def loaded(self, number: int, tokens: int, in_flight: int = 1) -> None:
        account = self.members[number].account
        account.pending_tokens += tokens
        account.in_flight += in_flight

    def choose(self, blocks: Sequence[int], *, extra: int = 10, now: float = 100.0) -> Choice:
        wish = Wish(len(blocks) * 64 + extra, 300, blocks)
        choices = {
            (choice.member.replica.id, choice.cached): choice
            for order in itertools.islice(itertools.permutations(self.members), 24)
            for choice in [self.policy.choose(order, wish, now)]
        }
        [choice] = choices.values()  # the order of the members never matters
        return choice


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("prefix_affinity", PrefixAffinity),
        ("least_load", LeastLoad),
        ("round_robin", RoundRobin),
    ],
)
def test_policies_by_name(name: str, kind: type) -> None:
    config = RoutingConfig(policy=name)  # type: ignore[arg-type]
    assert type(make_policy(config, PrefixIndex(10))) is kind


def test_goes_where_the_prefix_is() -> None:
    fleet = Fleet(4)
    fleet.holds(2, BLOCKS[:50])
    choice = fleet.choose(BLOCKS)
    assert choice.member is fleet.members[2]
    assert choice.cached == 50 * 64
    assert choice.score is not None
    assert choice.score.total == pytest.approx(choice.score.own)


def test_a_strongly_cached_prompt_goes_home_though_that_is_busier() -> None:
    fleet = Fleet(2)
    fleet.holds(0, BLOCKS)
    fleet.loaded(0, 3000, 3)
    assert fleet.choose(BLOCKS).member is fleet.members[0]


def test_a_hot_prefix_spreads_when_waiting_costs_more_than_computing() -> None:
    fleet = Fleet(2)
    fleet.holds(0, BLOCKS)
    fleet.loaded(0, 8000, 3)
    choice = fleet.choose(BLOCKS)
    assert choice.member is fleet.members[1]
    assert choice.cached == 0


def test_a_miss_goes_by_load_not_by_index_size() -> None:
    fleet = Fleet(3)
    fleet.holds(0, [1000 + n for n in range(500)])
    fleet.loaded(1, 5000)
    fleet.loaded(2, 5000)
    assert fleet.choose(BLOCKS).member is fleet.members[0]


def test_no_room_in_the_cache_costs() -> None:
    fleet = Fleet(2)
    fleet.holds(0, BLOCKS[:20])
    fleet.members[0].account.live_tokens = 495_000
    assert fleet.choose(BLOCKS).member is fleet.members[1]


def test_ties_go_to_the_longest_match() -> None:
    fleet = Fleet(3, tie_window_s=0.5)
    fleet.holds(1, BLOCKS[:2])
    fleet.loaded(1, 300)
    assert fleet.choose(BLOCKS[:4]).member is fleet.members[1]


def test_ties_without_a_match_follow_the_block_that_sets_the_prompt_apart() -> None:
    system = BLOCKS[:10]
    chosen = set()
    for tail in range(200, 240):
        fleet, again = Fleet(4), Fleet(4)
        for number in range(4):
            fleet.holds(number, system)
            again.holds(number, system)
        one = fleet.choose([*system, tail]).member.replica.id
        # Another gateway agrees, although another part of the prompt differs.
        assert again.choose([*system, tail, tail + 1000]).member.replica.id == one
        chosen.add(one)
    assert len(chosen) == 4


def test_ties_without_blocks_go_to_the_fewest_in_flight_then_to_who_waited() -> None:
    fleet = Fleet(3)
    fleet.loaded(0, 0, 2)
    fleet.loaded(1, 0, 1)
    fleet.loaded(2, 0, 1)
    fleet.members[1].last_pick = 7
    fleet.members[2].last_pick = 5
    assert fleet.choose([]).member is fleet.members[2]


def test_slow_start_keeps_a_newcomer_from_all_the_traffic() -> None:
    fleet = Fleet(2)
    fleet.loaded(0, 1600, 1)
    fleet.members[1].appeared_at = 95.0
    fleet.loaded(1, 1500, 1)
    early = fleet.choose([], now=96.0)
    assert early.member is fleet.members[0]
    assert fleet.choose([], now=200.0).member is fleet.members[1]
    assert early.score is not None
    assert early.score.slow_start == 0


def test_foreign_traffic_repels() -> None:
    fleet = Fleet(2)
    fleet.members[0].foreign_tokens = 5000.0
    fleet.members[0].foreign_in_flight = 5.0
    assert fleet.choose(BLOCKS).member is fleet.members[1]


def test_round_robin_takes_turns() -> None:
    fleet = Fleet(3)
    policy = RoundRobin()
    order = []
    for pick in range(1, 10):
        member = policy.choose(fleet.members, Wish(10, 10, ()), 0.0).member
        member.last_pick = pick
        order.append(member.replica.id)
    assert sorted(order[:3]) == ["r0", "r1", "r2"]
    assert order[:3] == order[3:6] == order[6:]


def test_least_load_minds_the_weight() -> None:
    fleet = Fleet(2)
    fleet.members[1].replica = Replica("r1", "m", weight=4.0)
    fleet.loaded(0, 0, 1)
    fleet.loaded(1, 0, 3)
    assert LeastLoad().choose(fleet.members, Wish(10, 10, ()), 0.0).member is fleet.members[1]
    fleet.loaded(1, 0, 2)
    assert LeastLoad().choose(fleet.members, Wish(10, 10, ()), 0.0).member is fleet.members[0]
