"""Who takes the next connection: on a board in memory, with the clock as an argument."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from core.load_board import STALE_AFTER_S, LoadBoard
from proxy.listen.balance import MOST_STEPS, STEP_BACK_S, Balance


class Workers:
    """Workers that share a socket, awake unless `stopped`."""

    def __init__(self, count: int) -> None:
        self.board = LoadBoard(count)
        self.cells = [self.board.for_worker(index) for index in range(count)]
        self.balances = [Balance(cell, self.board.others(cell.index)) for cell in self.cells]
        self.stopped: set[int] = set()
        self.now = 100.0
        for cell in self.cells:
            cell.set_accepting(True)
        self.beat()

    def beat(self) -> None:
        for cell in self.cells:
            if cell.index not in self.stopped:
                cell.beat(self.now)

    def take(self, order: Sequence[int]) -> float:
        """A connection comes, and the workers look at it in this order, again and again; how
        long it waits in seconds."""
        began_at = self.now
        while True:
            for index in order:
                if index in self.stopped or self.balances[index].steps_back(self.now):
                    continue
                self.cells[index].count_accepted()
                self.cells[index].set_connections(self.cells[index].connections + 1)
                return self.now - began_at
            self.now += STEP_BACK_S
            self.beat()

    @property
    def counts(self) -> list[int]:
        return [cell.connections for cell in self.cells]


def test_one_worker_never_steps_back() -> None:
    workers = Workers(1)
    for _ in range(50):
        assert workers.take([0]) == 0.0


def test_few_connections_are_spread_exactly_whoever_is_quickest() -> None:
    workers = Workers(4)
    for _ in range(12):
        workers.take([0, 1, 2, 3])
    assert workers.counts == [3, 3, 3, 3]


@given(seed=st.integers(0, 1000), count=st.integers(2, 8), connections=st.integers(1, 800))
def test_many_connections_are_spread_within_three_parts_of_a_hundred(
    seed: int, count: int, connections: int
) -> None:
    workers, chance = Workers(count), random.Random(seed)
    for _ in range(connections):
        waited = workers.take(chance.sample(range(count), count))
        assert waited == 0.0  # the least loaded one always takes it at once
    mean = connections / count
    assert max(workers.counts) <= max(mean + 1, mean * 1.03 + 1)


def test_exchanges_count_where_they_are_more_than_connections() -> None:
    workers = Workers(2)
    workers.cells[0].set_connections(1)
    workers.cells[0].set_exchanges(40)
    for _ in range(20):
        workers.take([0, 1])
    assert workers.counts == [1, 20]


def test_a_stopped_worker_keeps_nobody_waiting() -> None:
    workers = Workers(4)
    for _ in range(8):
        workers.take([0, 1, 2, 3])
    workers.stopped = {3}
    waits = [workers.take([0, 1, 2, 3]) for _ in range(3000)]
    assert max(waits) <= MOST_STEPS * STEP_BACK_S + 1e-9
    assert sum(waits) <= STALE_AFTER_S + MOST_STEPS * STEP_BACK_S
    workers.now += STALE_AFTER_S
    workers.beat()
    assert [workers.take([0, 1, 2, 3]) for _ in range(30)] == [0.0] * 30
    assert workers.counts[3] == 2
    assert max(workers.counts[:3]) - min(workers.counts[:3]) <= 0.03 * max(workers.counts)


def test_who_comes_late_is_waited_for_again_and_again() -> None:
    """Steps back that ended well are forgotten."""
    workers = Workers(2)
    workers.cells[0].set_connections(9)
    for _ in range(50):
        assert workers.balances[0].steps_back(workers.now)
        workers.now += 1.0
        workers.beat()


def test_who_does_not_accept_is_not_waited_for() -> None:
    workers = Workers(2)
    workers.cells[1].set_accepting(False)
    workers.cells[0].set_connections(9)
    assert not workers.balances[0].steps_back(workers.now)
