from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from core.shared_map import SharedMap


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_agrees_with_a_dictionary(seed: int, entries: int) -> None:
    rng = random.Random(seed)
    made = SharedMap(entries)
    naive: dict[int, int] = {}
    # Keys that belong close together, so that runs form and are closed again.
    keys = [slot + 2 * entries * rng.randrange(2**50) for slot in range(min(8, 2 * entries))] * 2
    keys += [key + 2 * entries for key in keys[:8]]
    for _ in range(400):
        key, value = rng.choice(keys), rng.getrandbits(64) or 1
        if rng.random() < 0.5:
            assert made.pop(key) == naive.pop(key, 0)
        elif key in naive or len(naive) < entries:
            made[key] = value
            naive[key] = value
        assert len(made) == len(naive)
        assert [made.get(key) for key in keys] == [naive.get(key, 0) for key in keys]
    assert made.refused == 0
    assert dict(made.adopt()) == naive
    assert len(made) == len(naive)


def test_what_is_too_much_is_refused_and_counted() -> None:
    made = SharedMap(2)
    for key in (1, 2, 3):
        made[key] = 7
    assert (len(made), made.refused, made.get(3)) == (2, 1, 0)
    made[2] = 8
    assert (made.get(2), made.refused) == (8, 1)
    assert made.pop(9, 5) == 5
    assert made.get(9, 5) == 5


def test_key_nothing_is_a_key() -> None:
    made = SharedMap(10)
    assert made.get(0) == 0
    made[0] = 3
    assert made.get(0) == 3
    assert made.pop(0) == 3
    assert len(made) == 0


def test_a_writer_that_died_in_the_middle_leaves_nothing_wrong() -> None:
    made = SharedMap(10)
    for key in (5, 25, 45):  # one run
        made[key] = key + 1
    words = made._words
    at = made._place(45)
    words[at + 2], words[at + 3] = words[at], words[at + 1]  # while it was being moved up
    words[at + 4] = 77  # another one half written
    assert made.get(45) == 46
    assert dict(made.adopt()) == {5: 6, 25: 26, 45: 46}
    assert len(made) == 3
    assert made.pop(45) == 46
    assert made.get(45) == 0


def test_each_entry_costs_32_bytes() -> None:
    entries = 100_000
    assert len(SharedMap(entries)._memory) <= 32 * entries + 16 * 256
