"""The script on a real Valkey against the same rules in Python, on random histories."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratelimit.bucket import UNITS, Level, Limit, change, refill
from ratelimit.redis_command import SCRIPT

LEASE_US = 5_000_000
DONE_US = 30_000_000
MARK_US = 600_000_000
START_US = 1_800_000_000_000_000
# Windows and bounds of all kinds; then streams, and one of each that refuses nothing.
LIMITS = [
    Limit(1000 * UNITS, 60, 60),
    Limit(7 * UNITS, 1_000_003, 1),
    Limit(10**9 * UNITS, 10**9, 86_400),
    Limit(3 * UNITS, 3, 60),
    Limit(500 * UNITS, 7_000, 3600),
    Limit(2 * UNITS, 2, 60),
]
LETTERS = "tttcTC"
COUNT = len(LIMITS)
PROPERTIES = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def client(valkey: Any) -> Iterator[Any]:
    with redis.Redis(unix_socket_path=valkey.socket_path) as connection:
        yield connection


@dataclass
class Record:
    """A reservation: `taken` and `used` by bucket, of those that were charged."""

    until: int
    taken: dict[int, int] = field(default_factory=dict)
    used: dict[int, int] = field(default_factory=dict)
    done: bool = False
    lapsed: bool = False


class Model:
    """The script in terms of `bucket.py`."""

    def __init__(self) -> None:
        self.levels: dict[int, Level] = {}
        self.streams: dict[int, dict[int, int]] = {3: {}, 5: {}}
        self.records: dict[int, Record] = {}

    def run(self, now: int, op: str, name: int, least: list[int], asked: list[int]) -> list[int]:
        self.lapse(now)
        levels = [self.level(i, now) for i in range(COUNT)]
        shown = [level[0] for level in levels]
        record = self.records.get(name)
        if op == "l" or (record is not None and (op == "r" or record.done)):
            return [1, *shown]
        lacking = {i for i in range(COUNT) if shown[i] < least[i]}
        result = 1
        if op == "r":
            if any(LETTERS[i].islower() for i in lacking):
                return [0, *shown]
            result += sum(2 << i for i in lacking)
            record = Record(now + LEASE_US)
            for i in set(range(COUNT)) - lacking:
                amount = UNITS if i in self.streams else min(asked[i], shown[i])
                if i in self.streams:
                    self.streams[i][name] = now + LEASE_US
                else:
                    record.taken[i] = amount
                    record.used[i] = 0
                levels[i] = self.take(i, levels[i], amount)
            self.records[name] = record
        else:
            levels = self.tell(now, op == "s", name, asked, levels)
        return [result, *(level[0] for level in levels)]

    def tell(
        self, now: int, final: bool, name: int, used: list[int], levels: list[Level]
    ) -> list[Level]:
        known = self.records.get(name)
        record = known or Record(0)
        for i in range(COUNT):
            if i in self.streams:
                has = name in self.streams[i]
                if final:
                    self.streams[i].pop(name, None)
                    levels[i] = (levels[i][0] + has * UNITS, now)
                elif has or known is None or LETTERS[i].islower():
                    self.streams[i][name] = now + LEASE_US
                    levels[i] = (levels[i][0] - (not has) * UNITS, now)
            elif known is None or i in record.taken or record.lapsed:
                before = record.taken.get(i, 0)
                amount = used[i] if final else max(before, used[i])
                record.taken[i] = amount
                record.used[i] = max(record.used.get(i, 0), used[i])
                levels[i] = self.take(i, levels[i], amount - before)
        record.until, record.done, record.lapsed = (
            now + (DONE_US if final else LEASE_US),
            final,
            False,
        )
        self.records[name] = record
        return levels

    def lapse(self, now: int) -> None:
        for held in self.streams.values():
            for name in [name for name, until in held.items() if until <= now]:
                del held[name]
        for name, record in list(self.records.items()):
            if record.until > now:
                continue
            del self.records[name]
            if record.done or record.lapsed:
                continue
            for i, amount in record.taken.items():
                if (stored := self.levels.get(i)) is not None:
                    self.levels[i] = (stored[0] + amount - record.used[i], stored[1])
            used = {i: amount for i, amount in record.used.items() if amount}
            if used:
                self.records[name] = Record(now + MARK_US, dict(used), used, lapsed=True)

    def level(self, i: int, now: int) -> Level:
        if i in self.streams:
            return LIMITS[i].capacity - len(self.streams[i]) * UNITS, now
        return refill(LIMITS[i], self.levels.get(i), now)

    def take(self, i: int, level: Level, amount: int) -> Level:
        if i in self.streams:
            return level[0] - amount, level[1]
        self.levels[i] = change(LIMITS[i], level, -amount)
        return self.levels[i]


def call(
    now: int, op: str, name: int, least: list[int], asked: list[int], *, lease_us: int = LEASE_US
) -> list[Any]:
    keys = ["{t}:leases", "{t}:open", *(f"{{t}}:{i}" for i in range(COUNT))]
    limits = [number for limit in LIMITS for number in limit]
    return [SCRIPT, len(keys), *keys, op, name, lease_us, now, LETTERS, *limits, *least, *asked]


def amounts(tokens: list[int], name: int) -> list[int]:
    """Awkward ones: not whole tokens, and for the third bucket close to its capacity."""
    first, second, third = tokens
    many = [first * UNITS + name, second * UNITS // 150, third * 900_001 * UNITS]
    return [*many, UNITS, first * UNITS // 3, UNITS]


operation = st.tuples(
    st.integers(-2_000_000, 70_000_000),
    st.sampled_from("rrrccsl"),
    st.integers(0, 6),
    st.lists(st.integers(0, 1200), min_size=3, max_size=3),
    st.integers(1, 10),
)


@PROPERTIES
@given(st.lists(operation, max_size=25))
def test_the_script_is_the_model(
    client: Any, trace: list[tuple[int, str, int, list[int], int]]
) -> None:
    client.flushall()
    model, now, expected = Model(), START_US, []
    pipeline = client.pipeline(transaction=False)
    for step, op, name, tokens, share in trace:
        now += step
        asked = amounts(tokens, name)
        least = [amount // share for amount in asked] if op == "r" else [0] * COUNT
        least = [
            UNITS if letter in "cC" else amount
            for letter, amount in zip(LETTERS, least, strict=True)
        ]
        expected.append(model.run(now, op, name, least, asked))
        pipeline.eval(*call(now, op, name, least, asked))
    assert pipeline.execute() == expected


@PROPERTIES
@given(st.lists(st.tuples(st.integers(0, 30_000_000), st.integers(0, 700)), max_size=40))
def test_never_more_than_capacity_and_rate_is_granted(
    client: Any, requests: list[tuple[int, int]]
) -> None:
    """What is asked of one bucket at growing instants, and settled as it was reserved."""
    client.flushall()
    now, granted, limit = START_US, 0, LIMITS[0]
    for name, (step, tokens) in enumerate(requests):
        now += step
        asked = [tokens * UNITS, 0, 0, 0, 0, 0]
        reply = client.eval(*call(now, "r", name, asked, asked))
        if reply[0]:
            granted += tokens * UNITS
            client.eval(*call(now, "s", name, [0] * COUNT, asked))
        flowed = (now - START_US) * limit.refill // limit.window_s
        assert granted <= limit.capacity + flowed


@PROPERTIES
@given(
    st.lists(
        st.tuples(st.integers(0, 300), st.integers(0, 300), st.sampled_from(["once", "twice"])),
        max_size=20,
    )
)
def test_what_is_charged_in_the_end_is_what_was_used(
    client: Any, requests: list[tuple[int, int, str]]
) -> None:
    """At one instant, however often each call is repeated and in which order it arrives."""
    client.flushall()
    spent = 0
    for name, (reserved, used, times) in enumerate(requests):
        asked = [reserved * UNITS, 0, 0, 0, 0, 0]
        end = [used * UNITS, 0, 0, 0, 0, 0]
        repeats = 2 if times == "twice" else 1
        replies = [client.eval(*call(START_US, "r", name, asked, asked)) for _ in range(repeats)]
        assert len({tuple(reply) for reply in replies}) == 1
        for _ in range(repeats):
            client.eval(*call(START_US, "c", name, [0] * COUNT, end))
        for _ in range(repeats):
            client.eval(*call(START_US, "s", name, [0] * COUNT, end))
        client.eval(*call(START_US, "r", name, asked, asked))
        spent += used
    left = client.eval(*call(START_US, "l", 0, [0] * COUNT, [0] * COUNT))[1]
    assert left == LIMITS[0].capacity - spent * UNITS


def test_clocks_may_step(client: Any) -> None:
    """A failover to a server whose clock is ten seconds back, or an hour ahead."""
    least = [100 * UNITS, 0, 0, UNITS, 0, 0]
    none = [0] * COUNT

    def run(now: int, op: str, name: int) -> Any:
        must = least if op == "r" else none
        return client.eval(*call(now, op, name, must, least, lease_us=30_000_000))

    def levels(now: int) -> tuple[int, int]:
        reply = run(now, "l", 9)
        return reply[1] // UNITS, reply[4] // UNITS

    assert run(START_US, "r", 1)[0] == 1
    back = START_US - 10_000_000
    assert levels(back) == (900, 2)  # neither refilled nor given back
    assert run(back, "r", 2)[0] == 1
    assert levels(START_US) == (800, 1)  # the ten seconds do not flow in twice
    assert levels(START_US + 21_000_000) == (921, 2)  # the second lease began ten seconds earlier
    ahead = START_US + 3_600_000_000
    assert levels(ahead) == (1000, 3)  # at most one burst, and what is held: leases have lapsed
    run(ahead, "c", 1)
    assert levels(ahead) == (900, 2)  # who lives on says so
