from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from core.shared_wide_map import WideMap


@given(st.integers(0, 2**32))
def test_agrees_with_a_dictionary(seed: int) -> None:
    rng = random.Random(seed)
    made = WideMap(1000, 3)
    naive: dict[int, int] = {}
    keys = [rng.getrandbits(64) for _ in range(20)]
    for _ in range(200):
        key = rng.choice(keys)
        if rng.random() < 0.4:
            assert made.pop(key) == naive.pop(key, 0)
        else:
            naive[key] = made[key] = 1 << rng.randrange(192) | 1 << rng.randrange(192)
        assert [made.get(key, 0) for key in keys] == [naive.get(key, 0) for key in keys]
    for key in naive:
        made.pop(key)
    assert len(made) == 0


def test_whoever_goes_on_begins_with_nothing() -> None:
    made = WideMap(10, 2)
    made[1] = 1 << 100
    made[2] = 1
    assert (len(made), made.entries) == (2, 10)
    assert list(made.adopt()) == []
    assert (made.get(1), made.get(2), len(made)) == (0, 0, 0)
    assert made.refused == 0
