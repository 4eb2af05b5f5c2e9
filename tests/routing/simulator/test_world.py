"""Faults, sessions and what policies are told."""

from __future__ import annotations

from routing.simulator.engine import EngineModel, Job
from routing.simulator.peers import LeastLoad
from routing.simulator.trace import Request
from routing.simulator.world import Faults, World

MODEL = EngineModel()


def world(*requests: Request, replicas: int = 2, **faults: float) -> World:
    made = Faults(**faults)  # type: ignore[arg-type]
    return World(requests, replicas, MODEL, 64, faults=made, seed=1)


def test_a_turn_comes_so_long_after_the_answer_before_it() -> None:
    made = world(Request(0, 1.0, 100, 10, ()), Request(1, 2.5, 200, 10, (), after=0))
    first, second = made.run(LeastLoad(made))
    assert first.offered_at == 1.0
    assert first.ended_at is not None
    assert second.offered_at == first.ended_at + 2.5


def test_prompts_go_elsewhere_when_a_replica_dies_and_answers_break_off() -> None:
    requests = [Request(n, n / 100, 1000, 5000, ()) for n in range(4)]
    made = world(*requests, Request(9, 10.0, 10, 2, ()), crash=0.5, away_s=1.0)
    policy = LeastLoad(made)
    jobs = made.run(policy)
    broken = [job for job in jobs if job.ended_at is None]
    assert len(broken) == 2
    assert {job.replica for job in broken} == {0}
    assert made.alive == [0, 1]
    assert policy.in_flight == [0, 0]

    requests = [Request(n, 0.0, 100_000, 2, ()) for n in range(2)]
    made = world(*requests, Request(9, 1.0, 10, 2, ()), crash=0.5)
    jobs = made.run(LeastLoad(made))
    assert [job.ended_at is None for job in jobs] == [False] * 3
    assert [job.replica for job in jobs[:2]] == [1, 1]
    assert sorted(job.tries for job in jobs[:2]) == [1, 2]


def test_who_follows_a_refused_one_comes_all_the_same() -> None:
    class Refusing(LeastLoad):
        def arrive(self, job: Job, now: float) -> None:
            if job.request.number == 0:
                self.world.shed(job)
            else:
                super().arrive(job, now)

    made = world(Request(0, 1.0, 100, 10, ()), Request(1, 2.0, 100, 10, (), after=0))
    first, second = made.run(Refusing(made))
    assert (first.shed, second.shed, second.offered_at) == (True, False, 3.0)


def test_metrics_are_scraped_until_they_freeze() -> None:
    class Looking(LeastLoad):
        scrapes = True

        def __init__(self, world: World) -> None:
            super().__init__(world)
            self.seen: list[int] = []

        def arrive(self, job: Job, now: float) -> None:
            self.seen.append(sum(metrics.running for metrics in self.world.metrics))
            super().arrive(job, now)

    requests = [Request(n, float(n), 100, 100_000, ()) for n in range(5)]
    made = world(*requests)
    live = Looking(made)
    made.run(live)
    assert live.seen == [0, 1, 2, 3, 4]
    made = world(*requests, frozen=0.6)
    frozen = Looking(made)
    made.run(frozen)
    assert frozen.seen == [0, 1, 2, 3, 3]


def test_the_first_replica_is_the_slow_one() -> None:
    made = world(Request(0, 0.0, 100, 10, ()), Request(1, 0.0, 100, 10, ()), slow=4.0)
    jobs = made.run(LeastLoad(made))
    first = {job.replica: job.first_at or 0.0 for job in jobs}
    assert first[0] == 4 * first[1]
