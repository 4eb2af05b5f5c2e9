"""Published rules, one decision at a time."""

from __future__ import annotations

from collections.abc import Callable

from routing.simulator.engine import EngineModel, Job
from routing.simulator.peers import Aibrix, Chwbl, Picking, SglangCli, StackLoadAware, Tree
from routing.simulator.peers_events import Dynamo, LlmdPrecise, LlmdSticky
from routing.simulator.trace import Request
from routing.simulator.world import Faults, World


def bench(policy: Callable[[World], Picking], replicas: int = 3) -> Picking:
    return policy(World((), replicas, EngineModel(), 64, faults=Faults(), seed=1))


def job(*blocks: int, length: int | None = None) -> Job:
    return Job(Request(0, 0.0, length or 64 * len(blocks) + 1, 10, blocks), 0.0)


def pick(policy: Picking, one: Job) -> int:
    return policy.pick(one, policy.world.alive)


def test_a_tree_matches_what_was_sent() -> None:
    world = bench(SglangCli).world
    tree = Tree(world)
    tree.insert(job(1, 2, 3), 1)
    assert tree.match(job(1, 2, 9), [0, 1, 2]) == [0, 128, 0]
    assert tree.match(job(1, 2, 9), [0, 2]) == [0, 0]


def test_sglang_follows_a_match_above_the_threshold_until_loads_are_far_apart() -> None:
    policy = bench(SglangCli)
    policy.in_flight = [1, 0, 1]
    assert pick(policy, job(1, 2, 3, 4)) == 1
    policy.in_flight = [0, 60, 0]
    assert pick(policy, job(1, 2, 8, 9)) == 1  # half of it matches
    assert pick(policy, job(1, 70, 80, 90)) != 1  # a quarter does
    policy.in_flight = [0, 65, 1]
    assert pick(policy, job(1, 2, 3, 4)) == 0


def test_load_aware_weighs_a_match_against_the_load_above_the_mean() -> None:
    policy = bench(StackLoadAware, 2)
    policy.world.engines[0].cache.touch([1, 2])
    policy.in_flight = [2, 1]
    assert pick(policy, job(1, 2)) == 0
    policy.in_flight = [9, 1]
    assert pick(policy, job(1, 2)) == 1


def test_aibrix_takes_the_longest_match_unless_one_is_far_busier() -> None:
    policy = bench(Aibrix)
    policy.in_flight = [1, 0, 1]
    assert pick(policy, job(1, 2)) == 1
    policy.in_flight = [0, 0, 0]
    assert pick(policy, job(1, 2)) == 1
    policy.in_flight = [0, 9, 1]
    assert pick(policy, job(1, 2)) == 0


def test_bounded_loads_pass_on_to_the_next_of_the_ring() -> None:
    policy = bench(Chwbl)
    home = pick(policy, job(5, 1))
    assert pick(policy, job(5, 2)) == home
    policy.in_flight[home] = 3
    assert pick(policy, job(5, 3)) != home


def test_llmd_adds_up_match_queue_and_room() -> None:
    policy = bench(LlmdPrecise, 2)
    policy.world.engines[0].cache.touch([1])
    assert pick(policy, job(1, 2)) == 0
    metrics = policy.world.metrics
    metrics[0] = metrics[0]._replace(waiting=5, kv_use=0.4)
    assert pick(policy, job(1, 2)) == 0  # 3 + 0 + 1.2 against 0 + 2 + 2
    metrics[0] = metrics[0]._replace(kv_use=0.6)
    assert pick(policy, job(1, 2)) == 1


def test_llmd_stays_until_it_costs_18_seconds() -> None:
    policy = bench(LlmdSticky, 2)
    policy.world.engines[0].cache.touch([1, 2, 3, 4, 5])
    assert isinstance(policy, LlmdSticky)
    policy.pending = [280_000, 0]
    assert pick(policy, job(1, 2, 3, 4, 5)) == 0
    policy.pending = [290_000, 0]
    assert pick(policy, job(1, 2, 3, 4, 5)) == 1


def test_dynamo_counts_blocks_to_prefill_and_blocks_active() -> None:
    policy = bench(Dynamo, 2)
    assert isinstance(policy, Dynamo)
    policy.world.engines[0].cache.touch([1, 2, 3])
    policy.active = [128, 0]
    assert pick(policy, job(1, 2, 3)) == 0
    policy.active, policy.pending = [256, 0], [0, 0]
    assert pick(policy, job(1, 2, 3)) == 1
