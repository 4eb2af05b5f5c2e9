"""Whose turn it is to ask, among workers on a clock of the test's own."""

from __future__ import annotations

from backend.asking import LOOK_S, Asking
from core.shared_probes import SharedProbes

TIMEOUT_S = 2.0
INTERVAL_S = 5.0


class Worker:
    """One that looks and asks as a `Monitor` does; an answer takes no time unless it is `slow`."""

    def __init__(self, memory: SharedProbes, number: int, now: float = 0.0) -> None:
        self.cell = cell = memory.cell(0, number)
        self.asking = Asking[int](cell.probed, cell.probe_begun_at, cell.doubted_at, TIMEOUT_S, now)
        self.asked: list[float] = []
        self.known: list[int] = []
        self.slow = False

    def look(self, now: float, answer: int = 0) -> None:
        found = self.asking.news()
        if found is None and self.asking.my_turn(now):
            self.asked.append(now)
            self.cell.begin_probe(now)
            if self.slow:
                return  # and stopped there
            self.asking.known(now)
            self.cell.put_probe(answer, now)
            found = answer
        if found is not None:
            self.known.append(found)
            self.asking.wait(now, INTERVAL_S)


def run(workers: list[Worker], until: float, start: float = 1.0, answer: int = 0) -> None:
    step = 0
    while (now := start + step * LOOK_S) < until:
        for number, worker in enumerate(workers):
            worker.look(now + number / 100, answer)
        step += 1


def test_one_asks_and_all_know() -> None:
    memory = SharedProbes(4, 1)
    workers = [Worker(memory, number) for number in range(4)]
    run(workers, 31.0)
    assert sum(len(worker.asked) for worker in workers) == 6
    assert [len(worker.known) for worker in workers] == [6] * 4


def test_who_is_stopped_while_it_asks_is_not_waited_for_long() -> None:
    memory = SharedProbes(2, 1)
    one, two = Worker(memory, 0), Worker(memory, 1)
    one.slow = True
    run([one], 1.1)
    run([two], 1.0 + TIMEOUT_S, start=1.1)
    assert (one.asked, two.asked) == ([1.0], [])
    run([two], 5.0, start=1.1 + TIMEOUT_S)
    assert len(two.asked) == 1


def test_a_doubt_has_somebody_ask_at_once_and_once() -> None:
    memory = SharedProbes(3, 1)
    workers = [Worker(memory, number) for number in range(3)]
    run(workers, 1.1)
    workers[2].cell.doubt(2.0)
    run(workers, 4.0, start=2.1, answer=3)
    assert sum(len(worker.asked) for worker in workers) == 2
    assert [worker.known for worker in workers] == [[0, 3]] * 3


def test_what_was_heard_before_it_came_is_no_news() -> None:
    memory = SharedProbes(2, 1)
    memory.cell(0, 0).put_probe(3, 10.0)
    late = Worker(memory, 1, now=11.0)
    late.look(11.0)
    assert (late.asked, late.known) == ([11.0], [0])


def test_pauses_end_when_it_is_due_or_for_a_look() -> None:
    one = Worker(SharedProbes(1, 1), 0).asking
    one.wait(0.0, 0.1)
    assert one.pause(0.0) == 0.1
    one.wait(0.0, 9.0)
    assert (one.pause(0.0), one.pause(10.0)) == (LOOK_S, LOOK_S)
