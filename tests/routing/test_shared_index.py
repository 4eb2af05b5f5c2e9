"""What concerns more than one process is in `test_index_keeper.py`."""

from __future__ import annotations

import pytest

from routing import shared_index
from routing.announcements import Announcer
from routing.shared_index import SharedIndex


class Setup:
    def __init__(self) -> None:
        self.heard = 0
        self.held: dict[int, int] = {7: 1}
        self.announcer = Announcer(0, 0)
        self.index = SharedIndex(
            self.held,
            self.announcer,
            {"a": 0, "b": 1},
            most_places=64,
            heard=lambda: self.heard,
            wake=lambda: None,
        )
        self.a, self.b = self.index.add(10, "a"), self.index.add(10, "b")

    def send(self) -> None:
        while self.announcer.next() is not None:
            self.announcer.sent()

    def matches(self, *blocks: int) -> list[tuple[int, int]]:
        return sorted(self.index.match(blocks, 3))


def test_what_was_sent_counts_until_the_keeper_has_heard_it() -> None:
    setup = Setup()
    assert setup.matches(7, 8) == [(1, 1), (2, 0)]
    setup.index.expect(setup.a, [7, 8])
    setup.index.expect(setup.b, [7])
    assert setup.matches(7, 8, 9) == [(1, 2), (2, 1)]
    setup.send()
    setup.index.expect(setup.b, [20])
    assert setup.matches(7, 8, 9) == [(1, 2), (2, 1)]  # not heard yet
    setup.send()
    setup.heard = setup.announcer.mark
    for _ in range(2):
        setup.index.expect(setup.b, [21])
        setup.send()
        setup.heard = setup.announcer.mark
    assert setup.matches(7, 8, 9) == [(1, 1), (2, 0)]  # that is the keeper's to say now


def test_nothing_is_kept_for_ever_of_what_nobody_hears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_index, "_MOST_UNHEARD", 20_000)
    setup = Setup()
    for first in range(0, 120_000, 1000):
        setup.index.expect(setup.a, range(first, first + 1000))
        setup.announcer.confirm(0, range(first, first + 1000))
    assert setup.matches(119_999) == [(1, 1), (2, 0)]
    assert setup.matches(8) == [(3, 0)]


def test_a_removed_replica_is_believed_to_hold_nothing() -> None:
    setup = Setup()
    setup.index.expect(setup.a, [8])
    setup.index.expect(setup.b, [8])
    setup.index.remove(setup.a)
    assert setup.matches(8) == [(1, 0), (2, 1)]
    assert setup.index.evictions == len(setup.index) == 0
