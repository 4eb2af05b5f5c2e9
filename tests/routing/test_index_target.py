from __future__ import annotations

from routing.index_target import Target


def test_it_tells_what_it_has() -> None:
    target = Target(4, 10)
    target.resident[1] = None
    assert repr(target) == "<Target 0x4: 1 resident, room for 10 blocks>"
    target.exact = True
    assert repr(target) == "<Target 0x4: 0 held, room for 10 blocks>"
