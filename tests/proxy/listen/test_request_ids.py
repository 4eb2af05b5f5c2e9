from __future__ import annotations

from proxy.listen.request_ids import RandomIds


def test_names_are_never_drawn_twice() -> None:
    ids = RandomIds()
    drawn = [ids.draw() for _ in range(1000)]
    assert len(set(drawn)) == 1000
    assert all(len(name) == 32 and int(name, 16) >= 0 for name in drawn)


def test_after_a_fork_none_of_the_same_are_left() -> None:
    ids = RandomIds()
    ids.draw()
    pool = ids._pool
    ids.forget()
    assert ids.draw() not in pool
