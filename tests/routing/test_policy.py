from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from core.replica import Replica
from routing.config import RoutingConfig, TiersConfig
from routing.index import PrefixIndex
from routing.learning import ModelSpeed
from routing.member import NEVER, Member
from routing.policy import LeastLoad, PrefixAffinity, RoundRobin, make_index, make_policy
from routing.score import Score

BLOCKS = list(range(1, 101))


class Choice(NamedTuple):
    """What a policy answers, by names."""

    member: Member
    cached: int
    score: Score


class Fleet:
    """Members and an index, to be set up by hand."""

    def __init__(self, number: int, **config: object) -> None:
        self.config = RoutingConfig(**config)  # type: ignore[arg-type]
        self.index = make_index(self.config)
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
        self.index.expect(self.members[number].entry, blocks)
        self.index.confirm(self.members[number].entry, blocks)

    def loaded(self, number: int, tokens: int, in_flight: int = 1) -> None:
        account = self.members[number].account
        account.pending_tokens += tokens
        account.in_flight += in_flight

    def choose(self, blocks: Sequence[int], *, extra: int = 10, now: float = 100.0) -> Choice:
        wish = (len(blocks) * 64 + extra, 300, blocks)
        choices = {}
        for order in itertools.islice(itertools.permutations(self.members), 24):
            member, cached, terms = self.policy.choose(order, wish, now)
            assert terms is not None
            choices[member.replica.id, cached] = Choice(member, cached, Score._make(terms))
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
        member, cached, terms = policy.choose(fleet.members, (10, 10, ()), 0.0)
        assert (cached, terms) == (0, None)
        member.last_pick = pick
        order.append(member.replica.id)
    assert sorted(order[:3]) == ["r0", "r1", "r2"]
    assert order[:3] == order[3:6] == order[6:]


def test_least_load_minds_the_weight() -> None:
    fleet = Fleet(2)
    fleet.members[1].replica = Replica("r1", "m", weight=4.0)
    fleet.loaded(0, 0, 1)
    fleet.loaded(1, 0, 3)
    assert LeastLoad().choose(fleet.members, (10, 10, ()), 0.0)[0] is fleet.members[1]
    fleet.loaded(1, 0, 2)
    assert LeastLoad().choose(fleet.members, (10, 10, ()), 0.0)[0] is fleet.members[0]


def total_by_the_formula(
    fleet: Fleet, member: Member, length: int, output: int, cached: int
) -> float:
    """As the head of `routing.score` writes it."""
    account, speed, config = member.account, member.speed, fleet.config
    rate, knee = speed.prefill_rate, config.attention_knee_tokens
    in_flight = account.in_flight + member.foreign_in_flight
    u = max(length - cached, 1)
    own = u / rate * (1 + (cached + u / 2) / knee)
    queue = 1.2 * (account.pending_tokens + member.foreign_tokens) / rate
    others = in_flight * min(own, 1.5) + in_flight * output * 2 * speed.per_sequence
    others += output * speed.per_token * account.live_tokens
    full = (account.live_tokens + u + output) / member.kv_tokens
    room = 2 * max(0.0, full - 0.85) / 0.15
    return queue + own + room + config.others_weight * others


def choose_plainly(
    fleet: Fleet, members: Sequence[Member], wish: tuple[int, int, Sequence[int]], now: float
) -> tuple[Member, int]:
    """The rules of `PrefixAffinity` one after another, without regard to cost."""
    length, output, blocks = wish
    config = fleet.config
    blocks = blocks[: max(length - 1, 0) // config.block_tokens]  # never the last token

    def held(member: Member) -> int:
        known = {**member.entry.resident, **member.entry.expected}
        return len(list(itertools.takewhile(known.__contains__, blocks)))

    def load(member: Member) -> tuple[float, int, int, int]:
        account = member.account
        in_flight = account.in_flight + member.foreign_in_flight
        weighed = in_flight / member.replica.weight
        return weighed, account.pending_tokens, member.last_pick, member.key

    queues = [
        1.2 * (m.account.pending_tokens + m.foreign_tokens) / m.speed.prefill_rate for m in members
    ]
    totals = {}
    for member in members:
        share = 1 - (now - member.appeared_at) / config.slow_start_s
        slow_start = max(0.0, share) * sum(queues) / len(queues)
        cached = held(member) * config.block_tokens
        totals[member] = slow_start + total_by_the_formula(fleet, member, length, output, cached)
    best = min(totals.values())
    tied = [m for m in members if totals[m] <= best + config.tie_window_s]
    longest = max(map(held, tied))
    tied = [m for m in tied if held(m) == longest]
    apart = min(map(held, members))
    if len(tied) > 1 and apart < len(blocks):
        text = blocks[apart].to_bytes(8, "little")
        tied.sort(key=lambda m: -xxh3_64_intdigest(text, m.key))
    else:
        tied.sort(key=load)
    return tied[0], longest * config.block_tokens


def random_fleet(rng: random.Random) -> Fleet:
    fleet = Fleet(rng.randint(1, 6), tie_window_s=rng.choice((0.0, 0.01, 0.5)))
    for number, member in enumerate(fleet.members):
        if rng.random() < 0.8:
            start = rng.choice((0, 0, 1000))
            fleet.holds(number, [start + n for n in range(rng.randint(0, 40))])
        if rng.random() < 0.3:
            fleet.index.expect(member.entry, list(range(rng.randint(0, 40))))
        scale = rng.choice((0, 1, 1, 50))
        fleet.loaded(number, scale * rng.randint(0, 400), scale * rng.randint(0, 3))
        member.account.live_tokens = scale * rng.randint(0, 10_000)
        member.last_pick = rng.randint(0, 3)
        member.replica = Replica(member.replica.id, "m", weight=rng.choice((0.5, 1.0, 2.0)))
        member.speed.prefill_rate *= rng.choice((0.5, 1.0, 1.0))
        if rng.random() < 0.3:
            member.foreign_tokens, member.foreign_in_flight = 3000.0, 2.0
        if rng.random() < 0.3:
            member.appeared_at = 100.0 - rng.choice((0.0, 1.0, 29.0, 31.0))
    return fleet


@given(st.integers(0, 2**32))
def test_chooses_as_the_rules_written_plainly(seed: int) -> None:
    rng = random.Random(seed)
    fleet = random_fleet(rng)
    for _ in range(5):
        members = rng.sample(fleet.members, rng.randint(1, len(fleet.members)))
        blocks = list(range(rng.randint(0, 45)))
        wish = (len(blocks) * 64 + rng.randrange(64), rng.choice((1, 300, 5000)), blocks)
        expected = choose_plainly(fleet, members, wish, 100.0)
        member, cached, _ = fleet.policy.choose(members, wish, 100.0)
        assert (member.replica.id, cached) == (expected[0].replica.id, expected[1])
        member.account.charge(max(wish[0] - cached, 1), wish[0] + wish[1])


def test_the_last_replica_of_a_session_is_favoured_by_no_more_than_a_prefill() -> None:
    fleet = Fleet(2, tie_window_s=0.0)
    wish = (6400, 300, BLOCKS)
    plain = fleet.policy.choose(fleet.members, wish, 100.0)[0]
    other = next(member for member in fleet.members if member is not plain)
    member, _, terms = fleet.policy.choose(fleet.members, wish, 100.0, other.replica.id)
    assert member is other
    assert terms is not None
    score = Score._make(terms)
    assert score.session == -0.25  # the prefill takes 0.42 s
    assert score.total == pytest.approx(score.queue + score.own - 0.25)
    _, _, terms = fleet.policy.choose(fleet.members, (640, 1, BLOCKS[:10]), 1.0, other.replica.id)
    assert terms is not None
    assert Score._make(terms).session == -Score._make(terms).own


@pytest.mark.parametrize("last", ["r0", "away"])
def test_a_session_follows_its_replica_into_no_queue(last: str) -> None:
    fleet = Fleet(2)
    fleet.loaded(0, 16_000)
    assert fleet.policy.choose(fleet.members, (640, 300, ()), 100.0, last)[0].replica.id == "r1"


def test_an_offer_counts_what_would_be_computed_anew_not_what_must_be_anyway() -> None:
    fleet = Fleet(2, decode_weight=0.0)
    fleet.holds(1, BLOCKS)
    wish = (6410, 300, BLOCKS)
    cost, (member, cached, _) = fleet.policy.offer(fleet.members, fleet.members, wish, 100.0)
    assert (cost, member.replica.id, cached) == (0.0, "r1", 6400)
    cost, (member, cached, _) = fleet.policy.offer(fleet.members, fleet.members[:1], wish, 100.0)
    assert (member.replica.id, cached) == ("r0", 0)
    assert cost == pytest.approx(6400 / 16_000)
    crowded = fleet.policy.offer(fleet.members, fleet.members[:1], wish, 100.0, waiting=10)
    assert crowded[0] > 5 * cost  # it would delay ten
    assert fleet.policy.cached(fleet.members, wish) == 6400


@pytest.mark.parametrize("policy", [LeastLoad(), RoundRobin()])
def test_others_offer_whom_they_would_choose(policy: LeastLoad | RoundRobin) -> None:
    fleet = Fleet(3)
    fleet.loaded(0, 10)
    fleet.members[0].last_pick = fleet.members[1].last_pick = 1
    cost, (member, _, _) = policy.offer(fleet.members, fleet.members[:2], (10, 1, ()), 100.0)
    assert cost == 0.0
    assert member is policy.choose(fleet.members[:2], (10, 1, ()), 100.0)[0]
    assert policy.cached(fleet.members, (10, 1, ())) == 0


def test_what_must_be_fetched_is_worth_less_than_what_is_there() -> None:
    fleet = Fleet(3, tiers=TiersConfig(cpu=0.8, disk=0.25))
    blocks = list(range(1, 101))
    for number, spans in enumerate(((20, 20, 20), (10, 60, 100), (0, 0, 50))):
        entry = fleet.members[number].entry
        fleet.index.use_exact(entry, True)
        for one, count in zip((entry, *entry.slower), spans, strict=True):
            for block in blocks[:count]:
                fleet.index.hold(one, block)
    wish = (100 * 64 + 10, 300, blocks)
    worth = [int(64 * tokens) for tokens in (20, 10 + 0.8 * 50 + 0.25 * 40, 0.25 * 50)]
    assert [held for held, _ in fleet.policy.weigh(fleet.members, wish, 1.0)] == worth
    assert fleet.choose(blocks).member is fleet.members[1]
    assert fleet.policy.cached(fleet.members, wish) == worth[1]


def test_with_tiers_whatever_tells_nothing_of_them_is_judged_as_without() -> None:
    blocks = list(range(1, 41))
    for number in range(8):
        found = []
        for tiers in (TiersConfig(), TiersConfig(cpu=0.8, disk=0.25)):
            fleet = Fleet(3, tiers=tiers)
            fleet.holds(number % 3, blocks[: 5 * number])
            found.append((fleet.choose(blocks).member.replica.id, fleet.choose(blocks).cached))
        assert found[0] == found[1]
