from __future__ import annotations

from core.shared_lives import SharedLives


def test_each_death_begins_another_life() -> None:
    lives = SharedLives(3)
    lives.ended(1)
    lives.ended(1)
    assert [lives.of(index) for index in range(3)] == [0, 2, 0]
