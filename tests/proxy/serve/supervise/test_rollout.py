from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.serve.supervise.names import CORE
from proxy.serve.supervise.rollout import TIMEOUT_S, Rollout, Step


def test_all_build_it_then_all_use_it() -> None:
    rollout = Rollout(1, [0, 1], now=0)
    assert rollout.step(1) is None
    rollout.staged(0)
    assert rollout.step(2) is None
    rollout.staged(1)
    assert rollout.step(3) is Step.COMMIT
    assert rollout.step(3) is None
    rollout.committed(1)
    assert rollout.step(4) is None
    rollout.committed(0)
    assert rollout.step(5) is Step.DONE
    assert rollout.step(6) is None
    assert rollout.reason == ""


def test_without_workers_nobody_is_asked() -> None:
    rollout = Rollout(1, [], now=0)
    assert [rollout.step(0), rollout.step(0), rollout.step(0)] == [Step.COMMIT, Step.DONE, None]


def test_one_refusal_is_enough() -> None:
    rollout = Rollout(1, [0, 1, 2], now=0)
    rollout.staged(0)
    rollout.refused(1, "$.a: no\n$.b: never")
    rollout.refused(2, "neither")
    assert rollout.step(1) is Step.DROP
    assert rollout.reason == "$.a: no\n$.b: never"
    rollout.staged(1)
    rollout.staged(2)
    assert rollout.step(2) is None


def test_a_death_ends_the_first_phase_and_not_the_second() -> None:
    rollout = Rollout(1, [0, 1], now=0)
    rollout.staged(0)
    rollout.died(1)
    assert rollout.step(1) is Step.DROP
    assert "worker 1 died" in rollout.reason
    rollout = Rollout(2, [0, 1], now=0)
    rollout.staged(0)
    rollout.staged(1)
    assert rollout.step(1) is Step.COMMIT
    rollout.died(1)
    rollout.committed(0)
    assert rollout.step(2) is Step.DONE


def test_who_had_built_it_and_died_counts_too() -> None:
    rollout = Rollout(1, [0, 1], now=0)
    rollout.staged(0)
    rollout.died(0)
    assert rollout.step(1) is Step.DROP


def test_who_takes_no_part_may_die() -> None:
    rollout = Rollout(1, [0], now=0)
    rollout.died(1)
    rollout.staged(0)
    assert rollout.step(1) is Step.COMMIT


def test_a_core_that_is_dead_or_silent_keeps_nobody_from_going_on() -> None:
    rollout = Rollout(1, [CORE, 0], now=0)
    rollout.died(CORE)
    rollout.staged(0)
    assert rollout.step(1) is Step.COMMIT
    rollout = Rollout(2, [CORE, 0], now=0)
    rollout.staged(0)
    assert rollout.step(1) is None
    assert rollout.step(TIMEOUT_S) is Step.COMMIT
    rollout = Rollout(3, [CORE, 0], now=0)
    rollout.refused(CORE, "no")
    assert rollout.step(1) is Step.DROP
    rollout = Rollout(4, [CORE, 0], now=0)
    assert rollout.step(TIMEOUT_S) is Step.DROP
    assert rollout.reason == "worker 0 did not answer within 30 s"


def test_silence_ends_both_phases() -> None:
    rollout = Rollout(1, [0, 1, 2], now=10)
    rollout.staged(1)
    assert rollout.deadline_at == 10 + TIMEOUT_S
    assert rollout.step(9 + TIMEOUT_S) is None
    assert rollout.step(10 + TIMEOUT_S) is Step.DROP
    assert rollout.reason == "worker 0, worker 2 did not answer within 30 s"
    rollout = Rollout(2, [0, 1], now=10)
    rollout.staged(0)
    rollout.staged(1)
    assert rollout.step(20) is Step.COMMIT
    assert rollout.step(19 + TIMEOUT_S) is None
    assert rollout.step(20 + TIMEOUT_S) is Step.DONE


_EVENTS = st.tuples(
    st.sampled_from(["staged", "refused", "died", "committed", "later"]), st.integers(0, 2)
)


@settings(max_examples=80)
@given(st.lists(_EVENTS, max_size=30))
def test_it_always_ends_and_commits_only_what_all_living_workers_built(
    events: list[tuple[str, int]],
) -> None:
    rollout = Rollout(1, [0, 1, 2], now=0)
    now, steps = 0.0, []
    built: set[int] = set()
    faulty = False
    for kind, index in [*events, ("later", 2), ("later", 2), ("later", 2)]:
        committing = Step.COMMIT in steps
        if kind == "later":
            now += TIMEOUT_S / 2 * index
        elif kind == "refused":
            rollout.refused(index, "no")
            faulty = faulty or not committing
        else:
            getattr(rollout, kind)(index)
            if kind == "staged":
                built.add(index)
            faulty = faulty or (kind == "died" and not committing)
        while (step := rollout.step(now)) is not None:
            if step is Step.COMMIT:
                assert built == {0, 1, 2}
                assert not faulty
            steps.append(step)
    assert steps in ([Step.DROP], [Step.COMMIT, Step.DONE])
    assert (Step.DROP in steps) == bool(rollout.reason)


def test_it_says_where_it_stands() -> None:
    rollout = Rollout(4, [1, 0], now=0)
    assert repr(rollout) == "<Rollout 4 staging, waiting for [0, 1]>"


@pytest.mark.parametrize("index", [0, 1])
def test_a_commit_before_its_time_counts_for_nothing(index: int) -> None:
    rollout = Rollout(1, [0, 1], now=0)
    rollout.committed(index)
    rollout.staged(0)
    rollout.staged(1)
    assert rollout.step(0) is Step.COMMIT
    assert rollout.step(0) is None
