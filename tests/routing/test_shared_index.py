"""What concerns more than one process is in `test_index_keeper.py`."""

from __future__ import annotations

from routing.announcements import Announcer
from routing.shared_index import SharedIndex


def test_it_has_nothing_of_its_own_but_what_is_on_its_way() -> None:
    index = SharedIndex({7: 1}, Announcer(0, 0), {"a": 0}, lambda: None, 64)
    target = index.add(10, "a")
    assert index.match([7, 8], target.bit) == [(1, 1)]
    index.expect(target, [7, 8])
    assert index.match([7, 8], target.bit) == [(1, 2)]
    index.expect(target, [])
    index.drop(target, [7, 8])
    assert index.match([7, 8], target.bit) == [(1, 1)]
    assert index.evictions == len(index) == 0
