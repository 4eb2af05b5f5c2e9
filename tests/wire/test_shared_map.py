"""A map in shared memory while another process writes it as fast as it can."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from typing import NoReturn

from core.shared_map import SharedMap

STABLE = 10_000
PASSING = 8_000
LOW = (1 << 16) - 1


def test_readers_never_see_anothers_value_and_miss_next_to_nothing() -> None:
    rng = random.Random(3)
    made = SharedMap(STABLE + PASSING)
    keys = [rng.getrandbits(64) for _ in range(STABLE)]
    passing = [rng.getrandbits(64) for _ in range(2 * PASSING)]
    for key in keys:
        made[key] = value_of(key, 1)
    pid = os.fork()
    if pid == 0:
        write(made, keys, passing)
    try:
        reads = missed = wrong = changed = 0
        end_at = time.monotonic() + 0.8
        while time.monotonic() < end_at:
            for key in rng.choices(keys, k=500):
                value = made.get(key)
                reads += 1
                if not value:
                    missed += 1
                elif value & ~LOW != key & ~LOW:
                    wrong += 1
                else:
                    changed += value & LOW > 1
            for key in rng.choices(passing, k=500):
                value = made.get(key)
                wrong += bool(value) and value & ~LOW != key & ~LOW
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert changed > 0, "nothing was written meanwhile"
    assert wrong == 0
    assert missed <= reads / 1000, f"{missed} of {reads}"
    # Whatever it was doing when it was killed, its successor finds all that should stay.
    found = dict(made.adopt())
    assert len(set(keys) - set(found)) <= 1  # the one that it was writing


def value_of(key: int, number: int) -> int:
    """Tells whose it is."""
    return key & ~LOW | number


def write(made: SharedMap, keys: list[int], passing: list[int]) -> NoReturn:
    rng = random.Random(4)
    here: list[int] = []
    try:
        made._count = len(keys)
        while True:
            if len(here) < PASSING and rng.random() < 0.6:
                key = rng.choice(passing)
                if not made.get(key):
                    here.append(key)
                made[key] = value_of(key, rng.randrange(1, LOW))
            elif here:
                made.pop(here.pop(rng.randrange(len(here))))
            key = rng.choice(keys)
            made[key] = value_of(key, rng.randrange(1, LOW))
    finally:
        sys.stderr.write("the writer failed\n")
        os._exit(1)
